#include "cuda/instances/sm80.cuh"

RUNMAX_SM80_INSTANCE(f16, F16, 64)
