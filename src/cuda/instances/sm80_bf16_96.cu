#include "cuda/instances/sm80.cuh"

RUNMAX_SM80_INSTANCE(bf16, Bf16, 96)
