#include "cuda/instances/generic.cuh"

RUNMAX_GENERIC_INSTANCE(f32_2, float, float, 8, 2)
