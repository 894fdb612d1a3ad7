#include "device/cpu_features.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace runmax {
namespace {

struct IsaName {
  const char* name;
  uint64_t bit;
};

constexpr IsaName kIsaNames[] = {
    {"baseline", RUNMAX_ISA_BASELINE}, {"avx2", RUNMAX_ISA_AVX2},
    {"avx512", RUNMAX_ISA_AVX512},     {"avx512_bf16", RUNMAX_ISA_AVX512_BF16},
    {"amx_bf16", RUNMAX_ISA_AMX_BF16}, {"neon", RUNMAX_ISA_NEON},
};

#if defined(__x86_64__)

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All zero for a leaf that does not exist.
Registers cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

constexpr bool bit(uint32_t word, int index) { return (word >> index & 1) != 0; }

// Which register states the operating system saves (XCR0).
uint64_t saved_states() {
  if (!bit(cpuid(1).ecx, 27)) return 0;  // OSXSAVE
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

// Linux hands out the 8 KiB of tile data per process, on request.
bool request_amx() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

uint64_t detect_isa() {
  constexpr uint64_t kYmm = 0x06;              // xmm, ymm
  constexpr uint64_t kZmm = kYmm | 0xe0;       // masks, upper zmm halves, zmm16-31
  constexpr uint64_t kTiles = kZmm | 0x60000;  // tile configuration and data
  const uint64_t saved = saved_states();
  const auto saves = [saved](uint64_t states) { return (saved & states) == states; };
  const Registers l1 = cpuid(1);
  const Registers l7 = cpuid(7);
  const Registers l7_1 = cpuid(7, 1);

  uint64_t isa = RUNMAX_ISA_BASELINE;
  const bool avx2 = saves(kYmm) && bit(l1.ecx, 28) && bit(l7.ebx, 5) && bit(l1.ecx, 12) &&
                    bit(l1.ecx, 29);  // AVX, AVX2, FMA, F16C
  if (!avx2) return isa;
  isa |= RUNMAX_ISA_AVX2;
  const bool avx512 = saves(kZmm) && bit(l7.ebx, 16) && bit(l7.ebx, 17) && bit(l7.ebx, 30) &&
                      bit(l7.ebx, 31);  // F, DQ, BW, VL
  if (!avx512) return isa;
  isa |= RUNMAX_ISA_AVX512;
  if (bit(l7_1.eax, 5)) isa |= RUNMAX_ISA_AVX512_BF16;
  const bool amx = saves(kTiles) && bit(l7.edx, 24) && bit(l7.edx, 22);  // TILE, BF16
  if (amx && request_amx()) isa |= RUNMAX_ISA_AMX_BF16;
  return isa;
}

void detect_caches(CpuFeatures& cpu) {
  const Registers vendor = cpuid(0);
  const bool amd = vendor.ecx == 0x444d4163 || vendor.ecx == 0x656e6975;  // AMD, Hygon
  const uint32_t leaf = amd ? 0x8000001d : 4;
  for (uint32_t i = 0; i < 16; ++i) {
    const Registers r = cpuid(leaf, i);
    const uint32_t type = r.eax & 31;
    if (type == 0) return;
    if (type == 2) continue;  // instructions
    const uint64_t line = (r.ebx & 0xfff) + 1;
    const uint64_t partitions = (r.ebx >> 12 & 0x3ff) + 1;
    const uint64_t ways = (r.ebx >> 22) + 1;
    const uint64_t bytes = ways * partitions * line * (uint64_t{r.ecx} + 1);
    switch (r.eax >> 5 & 7) {
      case 1:
        cpu.l1_bytes = bytes;
        break;
      case 2:
        cpu.l2_bytes = bytes;
        break;
      case 3:
        cpu.l3_bytes = bytes;
        break;
      default:
        break;
    }
  }
}

std::string detect_name() {
  char text[49] = {};
  for (uint32_t i = 0; i < 3; ++i) {
    const Registers r = cpuid(0x80000002 + i);
    std::memcpy(text + 16 * i, &r, 16);
  }
  std::string name = text;
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  return name.empty() ? "x86-64" : name;
}

#else

uint64_t detect_isa() {
#if defined(__aarch64__)
  return RUNMAX_ISA_BASELINE | RUNMAX_ISA_NEON;
#else
  return RUNMAX_ISA_BASELINE;
#endif
}

void detect_caches(CpuFeatures&) {}

std::string detect_name() {
#if defined(__aarch64__)
  return "AArch64";
#else
  return "CPU";
#endif
}

#endif

// What the processor does not tell, the C library may know; 0 or -1 if it does not either.
uint64_t or_sysconf(uint64_t bytes, int key) {
  if (bytes != 0) return bytes;
  const long answer = sysconf(key);
  return answer > 0 ? static_cast<uint64_t>(answer) : 0;
}

}  // namespace

CpuFeatures detect_cpu() {
  CpuFeatures cpu;
  cpu.isa = detect_isa();
  cpu.name = detect_name();
  detect_caches(cpu);
  cpu.l1_bytes = or_sysconf(cpu.l1_bytes, _SC_LEVEL1_DCACHE_SIZE);
  cpu.l2_bytes = or_sysconf(cpu.l2_bytes, _SC_LEVEL2_CACHE_SIZE);
  cpu.l3_bytes = or_sysconf(cpu.l3_bytes, _SC_LEVEL3_CACHE_SIZE);
  return cpu;
}

uint64_t isa_from_name(const char* name) {
  for (const IsaName& isa : kIsaNames) {
    if (name != nullptr && std::strcmp(isa.name, name) == 0) return isa.bit;
  }
  return 0;
}

const char* isa_name(uint64_t isa) {
  for (const IsaName& known : kIsaNames) {
    if (known.bit == isa) return known.name;
  }
  return nullptr;
}

std::string isa_names(uint64_t mask) {
  std::string names;
  for (const IsaName& isa : kIsaNames) {
    if ((mask & isa.bit) == 0) continue;
    if (!names.empty()) names += ", ";
    names += isa.name;
  }
  return names;
}

uint64_t isa_level(uint64_t isa) {
  if (isa == RUNMAX_ISA_NEON) return RUNMAX_ISA_BASELINE | RUNMAX_ISA_NEON;
  return isa | (isa - 1);  // the x86 levels are in order
}

}  // namespace runmax
