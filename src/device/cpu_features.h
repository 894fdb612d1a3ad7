// What the processor can do. The only reader of cpuid.
#pragma once

#include <cstdint>
#include <string>

#include "runmax/runmax.h"

namespace runmax {

struct CpuFeatures {
  uint64_t isa = RUNMAX_ISA_BASELINE;  // usable: processor, operating system and permission
  uint64_t l1_bytes = 0;               // data caches; 0 = unknown
  uint64_t l2_bytes = 0;
  uint64_t l3_bytes = 0;
  std::string name;
};

// Asks the operating system for the use of AMX where the processor has it.
CpuFeatures detect_cpu();

// "avx2" -> RUNMAX_ISA_AVX2 and back; 0 and nullptr for what does not exist.
uint64_t isa_from_name(const char* name);
const char* isa_name(uint64_t isa);
// "baseline, avx2": the names of all bits of a mask.
std::string isa_names(uint64_t mask);
// The bits of an instruction set and of all that it builds on.
uint64_t isa_level(uint64_t isa);

}  // namespace runmax
