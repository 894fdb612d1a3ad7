#include "cpu/kernel_table.h"

#include "cpu/backward_launch.h"
#include "cpu/forward_launch.h"

namespace runmax::cpu {

namespace baseline {
extern const ForwardKernel forward_kernel;
extern const BackwardKernel backward_kernel;
}  // namespace baseline
#ifdef RUNMAX_X86_ISAS
namespace avx2 {
extern const ForwardKernel forward_kernel;
extern const BackwardKernel backward_kernel;
}  // namespace avx2
namespace avx512 {
extern const ForwardKernel forward_kernel;
extern const BackwardKernel backward_kernel;
}  // namespace avx512
#endif

namespace {

template <const ForwardKernel& kernel, int kGigaflops>
constexpr KernelEntry forward_row(const char* name, uint64_t isa, const char* summary) {
  return {
      .name = name,
      .summary = summary,
      .device_kind = RUNMAX_DEVICE_CPU,
      .op = RUNMAX_FORWARD,
      .required_isa = isa,
      .supports = forward_supports,
      .configure = [](const Problem& p, const DeviceInfo& d,
                      Workspace& w) { return forward_configure(p, d, w, kernel); },
      .cost = [](const Problem& p, const DeviceInfo& d,
                 const Config&) { return forward_cost(p, d, kGigaflops * 1e9); },
      .launch = [](const Launch& launch) { return forward_launch(launch, kernel); },
  };
}

template <const BackwardKernel& kernel, int kGigaflops>
constexpr KernelEntry backward_row(const char* name, uint64_t isa, const char* summary) {
  return {
      .name = name,
      .summary = summary,
      .device_kind = RUNMAX_DEVICE_CPU,
      .op = RUNMAX_BACKWARD,
      .required_isa = isa,
      .supports = backward_supports,
      .configure = [](const Problem& p, const DeviceInfo& d,
                      Workspace& w) { return backward_configure(p, d, w, kernel); },
      .cost = [](const Problem& p, const DeviceInfo& d,
                 const Config&) { return backward_cost(p, d, kGigaflops * 1e9); },
      .launch = [](const Launch& launch) { return backward_launch(launch, kernel); },
  };
}

// Faster rows first: ties of the cost model go to the earlier one.
constexpr KernelEntry kTable[] = {
#ifdef RUNMAX_X86_ISAS
    forward_row<avx512::forward_kernel, 45>("forward_avx512", RUNMAX_ISA_AVX512,
                                            "every forward problem, AVX-512 arithmetic"),
    forward_row<avx2::forward_kernel, 30>("forward_avx2", RUNMAX_ISA_AVX2,
                                          "every forward problem, AVX2 and FMA arithmetic"),
    backward_row<avx512::backward_kernel, 45>("backward_avx512", RUNMAX_ISA_AVX512,
                                              "every backward problem, AVX-512 arithmetic"),
    backward_row<avx2::backward_kernel, 30>("backward_avx2", RUNMAX_ISA_AVX2,
                                            "every backward problem, AVX2 and FMA arithmetic"),
#endif
    {
        .name = "merge",
        .summary = "results over disjoint keys become one",
        .device_kind = RUNMAX_DEVICE_CPU,
        .op = RUNMAX_MERGE,
        .required_isa = RUNMAX_ISA_BASELINE,
        .supports = merge_supports,
        .configure = merge_configure,
        .cost = merge_cost,
        .launch = merge_launch,
    },
    forward_row<baseline::forward_kernel, 6>("forward_generic", RUNMAX_ISA_BASELINE,
                                             "every forward problem, on every machine"),
    backward_row<baseline::backward_kernel, 6>("backward_generic", RUNMAX_ISA_BASELINE,
                                               "every backward problem, on every machine"),
};

}  // namespace

std::span<const KernelEntry> kernel_table() { return kTable; }

}  // namespace runmax::cpu
