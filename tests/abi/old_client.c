/* A program of release 0.1: compiled against the frozen header of that release (v0_1/runmax), run
 * against the present library. Every struct that the library fills is followed by guard bytes,
 * since the present one may be longer than this program knows. */
#include "expect.h"

#define VALUE(name, number)
#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), "not the header of 0.1");
#define OFFSET(type, field, bytes)
#include "v0_1/layout.inc"

#define GUARDED(type, name)                    \
  struct {                                     \
    type value;                                \
    unsigned char guard[256];                  \
  } name;                                      \
  memset(&name, 0, sizeof name);               \
  memset(name.guard, 0xa5, sizeof name.guard); \
  name.value.struct_size = sizeof name.value

static int intact(const unsigned char* guard) {
  for (int i = 0; i < 256; ++i) {
    if (guard[i] != 0xa5) return 0;
  }
  return 1;
}

static void attend(runmax_device* device) {
  GUARDED(runmax_problem, problem); /* guard: what lies behind an old struct is not looked at */
  small_problem(&problem.value);
  EXPECT(runmax_validate(&problem.value) == RUNMAX_OK);
  EXPECT(runmax_supports(&problem.value, device) == RUNMAX_OK);
  runmax_plan* plan = NULL;
  EXPECT(runmax_plan_create(&problem.value, device, &plan) == RUNMAX_OK);
  if (plan == NULL) return;

  GUARDED(runmax_plan_info, info);
  EXPECT(runmax_plan_get_info(plan, &info.value) == RUNMAX_OK);
  EXPECT(intact(info.guard));
  EXPECT(info.value.struct_size == sizeof info.value);
  EXPECT(info.value.visible_pairs == 6);
  EXPECT(info.value.required_operations == 2 * 6 * (4 + 4));
  EXPECT(info.value.kernel[0] != '\0');
  EXPECT(strlen(runmax_plan_explain(plan)) > 0);

  float out[8], lse[2];
  memset(out, 0xff, sizeof out); /* NaN */
  memset(lse, 0xff, sizeof lse);
  GUARDED(runmax_args, args);
  args.value.q = kSmallQ;
  args.value.k = kSmallK;
  args.value.v = kSmallV;
  args.value.out = out;
  args.value.lse = lse;
  const size_t size = runmax_plan_workspace_size(plan);
  void* workspace = NULL;
  EXPECT(runmax_device_alloc(device, size, &workspace) == RUNMAX_OK);
  EXPECT(runmax_check_args(plan, &args.value, NULL) == RUNMAX_OK);
  EXPECT(runmax_execute(plan, &args.value, workspace, size, NULL) == RUNMAX_OK);
  EXPECT(runmax_device_sync(device, NULL) == RUNMAX_OK);
  EXPECT(small_result_is_right(out, lse));
  EXPECT(runmax_device_free(device, workspace) == RUNMAX_OK);
  runmax_plan_destroy(plan);
}

int main(void) {
  EXPECT(runmax_version() >= 1000);
  EXPECT(runmax_has_feature("forward") == 1);

  GUARDED(runmax_device_options, options);
  options.value.max_threads = 2;
  runmax_device* device = NULL;
  EXPECT(runmax_device_create(&options.value, &device) == RUNMAX_OK);
  if (device == NULL) return 1;
  GUARDED(runmax_device_info, device_info);
  EXPECT(runmax_device_get_info(device, &device_info.value) == RUNMAX_OK);
  EXPECT(intact(device_info.guard));
  EXPECT(device_info.value.max_threads == 2);

  attend(device);

  GUARDED(runmax_kernel_info, kernel);
  EXPECT(runmax_kernel_count() > 0);
  EXPECT(runmax_kernel_get(0, &kernel.value) == RUNMAX_OK);
  EXPECT(intact(kernel.guard));
  EXPECT(kernel.value.name != NULL);
  GUARDED(runmax_environment_info, variable);
  EXPECT(runmax_environment_count() > 0);
  EXPECT(runmax_environment_get(0, &variable.value) == RUNMAX_OK);
  EXPECT(intact(variable.guard));
  EXPECT(variable.value.name != NULL);

  runmax_device_destroy(device);
  return failures == 0 ? 0 : 1;
}
