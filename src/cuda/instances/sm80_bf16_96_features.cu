#include "cuda/instances/sm80.cuh"

RUNMAX_SM80_FEATURES(bf16, Bf16, 96)
