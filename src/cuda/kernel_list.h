// The rows of this backend's kernel table, faster ones first; the last one takes every valid
// problem. RUNMAX_CUDA_KERNELS(X) expands X(name, op, summary) for each. The library lists the rows
// without the backend; the backend adds name_supports, name_configure, name_cost and name_launch.
#pragma once

#define RUNMAX_CUDA_KERNELS(X)                                                                \
  X(merge_cuda, RUNMAX_MERGE, "results over disjoint keys become one")                        \
  X(forward_sm80, RUNMAX_FORWARD, "BF16 and F16 up to head_dim 256; tensor cores (mma.sync)") \
  X(forward_cuda, RUNMAX_FORWARD, "every forward problem, on every GPU; plain FMA arithmetic")
