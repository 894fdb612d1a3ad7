#include "cuda/instances/generic.cuh"

RUNMAX_GENERIC_INSTANCE(f16_2, F16, float, 8, 2)
