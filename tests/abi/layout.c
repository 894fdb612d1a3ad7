/* The layout of runmax.h is what its releases have promised. Compiled as C11 and as C++20, with
 * -Wpadded: there is nothing to run. */
#include "runmax/runmax.h"

#ifdef __cplusplus
#define CHECK(condition) static_assert(condition, #condition);
#else
#define CHECK(condition) _Static_assert(condition, #condition);
#endif

#define VALUE(name, number) CHECK((name) == (number))
#define SIZE(type, bytes) CHECK(sizeof(type) >= (bytes)) /* structs grow at their end */
#define OFFSET(type, field, bytes) CHECK(offsetof(type, field) == (bytes))

#include "v0_1/layout.inc"

CHECK(sizeof(runmax_tensor) == 128) /* never grows */
