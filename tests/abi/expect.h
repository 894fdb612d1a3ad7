/* The few lines that a C test needs. */
#ifndef RUNMAX_TESTS_ABI_EXPECT_H
#define RUNMAX_TESTS_ABI_EXPECT_H

#include <stdio.h>
#include <string.h>

#include "runmax/runmax.h"

static int failures = 0;

#define EXPECT(condition)                                                                 \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      ++failures;                                                                         \
      fprintf(stderr, "%s:%d: %s (last error: \"%s\")\n", __FILE__, __LINE__, #condition, \
              runmax_last_error());                                                       \
    }                                                                                     \
  } while (0)

/* q, k, v, out and lse of one head: 2 rows, 3 keys, head_dim 4. */
static void small_problem(runmax_problem* problem) {
  const int64_t q[] = {1, 1, 2, 4}, kv[] = {1, 1, 3, 4};
  memset(problem, 0, sizeof *problem);
  problem->struct_size = sizeof *problem;
  EXPECT(runmax_tensor_init(&problem->q, RUNMAX_F32, 4, q) == RUNMAX_OK);
  EXPECT(runmax_tensor_init(&problem->k, RUNMAX_F32, 4, kv) == RUNMAX_OK);
  EXPECT(runmax_tensor_init(&problem->lse, RUNMAX_F32, 3, q) == RUNMAX_OK);
  problem->v = problem->k;
  problem->out = problem->q;
}

/* Keys are zero, so that every weight is 1/3, out the mean of v, and lse = ln 3. */
static const float kSmallQ[8] = {1, -2, 3, -4, 5, -6, 7, -8};
static const float kSmallK[12] = {0};
static const float kSmallV[12] = {3, 6, 9, 12, 0, 3, 0, 3, 0, 0, 0, 3};

static int small_result_is_right(const float* out, const float* lse) {
  static const float kMean[4] = {1, 3, 3, 6};
  for (int i = 0; i < 8; ++i) {
    const float error = out[i] - kMean[i % 4];
    if (!(error > -1e-6F && error < 1e-6F)) return 0;
  }
  for (int i = 0; i < 2; ++i) {
    const float error = lse[i] - 1.0986123F;
    if (!(error > -1e-6F && error < 1e-6F)) return 0;
  }
  return 1;
}

#endif
