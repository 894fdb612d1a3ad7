#define RUNMAX_CPU_ISA baseline
#include "cpu/isa/backward_isa.h"
#include "cpu/isa/forward_isa.h"
