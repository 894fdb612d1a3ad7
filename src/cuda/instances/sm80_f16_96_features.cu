#include "cuda/instances/sm80.cuh"

RUNMAX_SM80_FEATURES(f16, F16, 96)
