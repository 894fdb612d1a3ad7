/* Causal attention through the C interface: one batch entry, 4 query heads on 2 kv heads. */
#include <stdio.h>
#include <stdlib.h>

#include "runmax/runmax.h"

enum { kQHeads = 4, kKvHeads = 2, kLen = 128, kHeadDim = 64 };

static void check(runmax_status status) {
  if (status == RUNMAX_OK) return;
  fprintf(stderr, "%s: %s\n", runmax_status_name(status), runmax_last_error());
  exit(1);
}

static float* random_floats(size_t n) {
  float* x = malloc(n * sizeof *x);
  if (x == NULL) exit(1);
  for (size_t i = 0; i < n; ++i) x[i] = (float)(rand() / (double)RAND_MAX) - 0.5F;
  return x;
}

int main(void) {
  const int64_t q_shape[] = {1, kQHeads, kLen, kHeadDim},
                kv_shape[] = {1, kKvHeads, kLen, kHeadDim};
  float* q = random_floats((size_t)kQHeads * kLen * kHeadDim);
  float* k = random_floats((size_t)kKvHeads * kLen * kHeadDim);
  float* v = random_floats((size_t)kKvHeads * kLen * kHeadDim);
  float* out = random_floats((size_t)kQHeads * kLen * kHeadDim);

  /* What to compute: shapes and options. */
  runmax_problem problem = {.struct_size = sizeof problem, .flags = RUNMAX_CAUSAL};
  check(runmax_tensor_init(&problem.q, RUNMAX_F32, 4, q_shape));
  check(runmax_tensor_init(&problem.k, RUNMAX_F32, 4, kv_shape));
  problem.v = problem.k;
  problem.out = problem.q;

  /* Where and how: a device, a plan, its workspace. A plan may run any number of times. */
  runmax_device* device = NULL;
  runmax_plan* plan = NULL;
  void* workspace = NULL;
  check(runmax_device_create(NULL, &device));
  check(runmax_plan_create(&problem, device, &plan));
  check(runmax_device_alloc(device, runmax_plan_workspace_size(plan), &workspace));

  const runmax_args args = {.struct_size = sizeof args, .q = q, .k = k, .v = v, .out = out};
  check(runmax_execute(plan, &args, workspace, runmax_plan_workspace_size(plan), NULL));

  /* Under the causal rule the first row sees the first key alone: its result is that value. */
  printf("out[0, 0, 0, :3] = %f %f %f\n", (double)out[0], (double)out[1], (double)out[2]);
  const int right = out[0] == v[0] && out[1] == v[1] && out[2] == v[2];

  check(runmax_device_free(device, workspace));
  runmax_plan_destroy(plan);
  runmax_device_destroy(device);
  free(q);
  free(k);
  free(v);
  free(out);
  return right ? 0 : 1;
}
