#define RUNMAX_CPU_ISA avx512
#include "cpu/isa/backward_isa.h"
#include "cpu/isa/forward_isa.h"
