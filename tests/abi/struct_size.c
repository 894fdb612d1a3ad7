/* What a struct of another release meets. Given to the library: shorter than in the first release
 * is refused; longer is taken if what this library does not know is zero, and refused otherwise.
 * Filled by the library: shorter than in the first release is refused; longer is taken. */
#include "expect.h"

#define SIZE(type, bytes) enum { kFirst_##type = (bytes) };
#define VALUE(name, number)
#define OFFSET(type, field, bytes)
#include "v0_1/layout.inc"

enum { kTail = 64 };

static runmax_device* device;
static runmax_plan* plan;
static void* workspace;

/* The struct `type` with a tail, as a longer release would have it. */
#define LONGER(type)           \
  struct {                     \
    type value;                \
    unsigned char tail[kTail]; \
  }

static int refused(runmax_status status) {
  return status == RUNMAX_INVALID_ARGUMENT && strstr(runmax_last_error(), "struct_size") != NULL;
}

/* call(void* x): a function of the library, given a struct that is well-formed but for its size. */
static void check_given(void* x, size_t size, size_t first_size, runmax_status (*call)(void*)) {
  unsigned char* bytes = x;
  uint32_t* struct_size = x;
  *struct_size = (uint32_t)size;
  EXPECT(call(x) == RUNMAX_OK);
  *struct_size = 0;
  EXPECT(refused(call(x)));
  *struct_size = (uint32_t)first_size - 8;
  EXPECT(refused(call(x)));
  *struct_size = UINT32_MAX;
  EXPECT(refused(call(x)));
  *struct_size = (uint32_t)(size + kTail);
  EXPECT(call(x) == RUNMAX_OK);
  for (size_t i = 0; i < kTail; i += kTail - 1) { /* the first and the last byte of the tail */
    bytes[size + i] = 1;
    EXPECT(refused(call(x)));
    bytes[size + i] = 0;
  }
  *struct_size = (uint32_t)first_size; /* a caller of the first release */
  EXPECT(call(x) == RUNMAX_OK);
}

static void check_filled(void* x, size_t size, size_t first_size, runmax_status (*call)(void*)) {
  uint32_t* struct_size = x;
  *struct_size = (uint32_t)size;
  EXPECT(call(x) == RUNMAX_OK);
  EXPECT(*struct_size == size);
  *struct_size = 0;
  EXPECT(refused(call(x)));
  *struct_size = (uint32_t)first_size - 8;
  EXPECT(refused(call(x)));
  *struct_size = (uint32_t)(size + kTail);
  EXPECT(call(x) == RUNMAX_OK);
}

static runmax_status validate(void* x) { return runmax_validate(x); }
static runmax_status supports(void* x) { return runmax_supports(x, device); }
static runmax_status plan_create(void* x) {
  runmax_plan* made = NULL;
  const runmax_status status = runmax_plan_create(x, device, &made);
  EXPECT((status == RUNMAX_OK) == (made != NULL));
  runmax_plan_destroy(made);
  return status;
}
static runmax_status device_create(void* x) {
  runmax_device* made = NULL;
  const runmax_status status = runmax_device_create(x, &made);
  EXPECT((status == RUNMAX_OK) == (made != NULL));
  runmax_device_destroy(made);
  return status;
}
static runmax_status check_args(void* x) { return runmax_check_args(plan, x, NULL); }
static runmax_status execute(void* x) {
  return runmax_execute(plan, x, workspace, runmax_plan_workspace_size(plan), NULL);
}

static runmax_status device_info(void* x) { return runmax_device_get_info(device, x); }
static runmax_status roofs(void* x) { return runmax_measure_roofs(device, x); }
static runmax_status plan_info(void* x) { return runmax_plan_get_info(plan, x); }
static runmax_status kernel_info(void* x) { return runmax_kernel_get(0, x); }
static runmax_status environment_info(void* x) { return runmax_environment_get(0, x); }

#define CHECK_FILLED(type, call)                           \
  do {                                                     \
    LONGER(type) x;                                        \
    memset(&x, 0, sizeof x);                               \
    check_filled(&x, sizeof x.value, kFirst_##type, call); \
  } while (0)

int main(void) {
  LONGER(runmax_problem) problem;
  LONGER(runmax_args) args;
  LONGER(runmax_device_options) options;
  memset(&problem, 0, sizeof problem);
  memset(&args, 0, sizeof args);
  memset(&options, 0, sizeof options);
  float out[8] = {0}, lse[2] = {0};
  small_problem(&problem.value);
  args.value.struct_size = sizeof args.value;
  args.value.q = kSmallQ;
  args.value.k = kSmallK;
  args.value.v = kSmallV;
  args.value.out = out;
  args.value.lse = lse;

  EXPECT(runmax_device_create(NULL, &device) == RUNMAX_OK);
  EXPECT(runmax_plan_create(&problem.value, device, &plan) == RUNMAX_OK);
  if (device == NULL || plan == NULL) return 1;
  EXPECT(runmax_device_alloc(device, runmax_plan_workspace_size(plan), &workspace) == RUNMAX_OK);

  check_given(&problem, sizeof problem.value, kFirst_runmax_problem, validate);
  check_given(&problem, sizeof problem.value, kFirst_runmax_problem, supports);
  check_given(&problem, sizeof problem.value, kFirst_runmax_problem, plan_create);
  check_given(&options, sizeof options.value, kFirst_runmax_device_options, device_create);
  check_given(&args, sizeof args.value, kFirst_runmax_args, check_args);
  check_given(&args, sizeof args.value, kFirst_runmax_args, execute);
  EXPECT(small_result_is_right(out, lse));

  CHECK_FILLED(runmax_device_info, device_info);
  CHECK_FILLED(runmax_roofs, roofs);
  CHECK_FILLED(runmax_plan_info, plan_info);
  CHECK_FILLED(runmax_kernel_info, kernel_info);
  CHECK_FILLED(runmax_environment_info, environment_info);

  EXPECT(runmax_device_free(device, workspace) == RUNMAX_OK);
  runmax_plan_destroy(plan);
  runmax_device_destroy(device);
  return failures == 0 ? 0 : 1;
}
