#include "cuda/instances/generic.cuh"

RUNMAX_GENERIC_INSTANCE(f64_1, double, double, 4, 1)
