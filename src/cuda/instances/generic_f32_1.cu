#include "cuda/instances/generic.cuh"

RUNMAX_GENERIC_INSTANCE(f32_1, float, float, 8, 1)
