#include "cuda/instances/generic.cuh"

RUNMAX_GENERIC_INSTANCE(bf16_1, Bf16, float, 8, 1)
