#include "registry/kernel_table.h"

#include <vector>

#include "cpu/kernel_table.h"
#include "cuda/kernel_list.h"
#include "device/cuda_backend.h"

namespace runmax {

namespace {

// Rows of the CUDA backend are listed whether or not it is there. They are asked only for a CUDA
// device, which cannot exist without it.
const KernelEntry& loaded(size_t row) {
  std::string reason;
  return cuda_backend(reason)->kernels[row];
}

template <size_t row>
constexpr KernelEntry cuda_row(const char* name, int32_t op, const char* summary) {
  return {
      .name = name,
      .summary = summary,
      .device_kind = RUNMAX_DEVICE_CUDA,
      .op = op,
      .required_isa = 0,
      .supports = [](const Problem& p, const DeviceInfo& d) { return loaded(row).supports(p, d); },
      .configure = [](const Problem& p, const DeviceInfo& d,
                      Workspace& w) { return loaded(row).configure(p, d, w); },
      .cost = [](const Problem& p, const DeviceInfo& d,
                 const Config& c) { return loaded(row).cost(p, d, c); },
      .launch = [](const Launch& launch) { return loaded(row).launch(launch); },
  };
}

#define RUNMAX_NUMBER(name, op, summary) k_##name,
enum CudaRow : size_t { RUNMAX_CUDA_KERNELS(RUNMAX_NUMBER) };
#undef RUNMAX_NUMBER

#define RUNMAX_ROW(name, op, summary) cuda_row<k_##name>(#name, op, summary),
constexpr KernelEntry kCudaRows[] = {RUNMAX_CUDA_KERNELS(RUNMAX_ROW)};
#undef RUNMAX_ROW

}  // namespace

std::span<const KernelEntry> kernel_table() {
  static const std::vector<KernelEntry> table = [] {
    const std::span<const KernelEntry> cpu = cpu::kernel_table();
    std::vector<KernelEntry> all(cpu.begin(), cpu.end());
    all.insert(all.end(), std::begin(kCudaRows), std::end(kCudaRows));
    return all;
  }();
  return table;
}

}  // namespace runmax
