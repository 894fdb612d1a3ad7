#include "device/index_copy.h"

#include <cstddef>
#include <cstring>
#include <vector>

#include "core/args.h"
#include "core/index_data.h"
#include "core/operands.h"
#include "core/tensor.h"

namespace runmax {

Status check_device_args(Device& device, const Problem& problem, const runmax_args& args,
                         void* stream) {
  RUNMAX_RETURN_IF_ERROR(check_args(problem, args, false));
  runmax_args on_host = args;
  std::vector<std::vector<std::byte>> copies;
  for (const Operand& operand : operands()) {
    const runmax_tensor& tensor = problem.raw.*operand.tensor;
    if (operand.type != TypeRule::kIndex || element_count(tensor) == 0) continue;
    const ByteExtent extent = byte_extent(tensor);
    const auto* from = static_cast<const std::byte*>(pointer_of(operand, args)) + extent.begin;
    std::vector<std::byte>& copy = copies.emplace_back(extent.end - extent.begin);
    RUNMAX_RETURN_IF_ERROR(
        device.copy(copy.data(), from, copy.size(), RUNMAX_COPY_FROM_DEVICE, stream));
    const std::byte* pointer = copy.data() - extent.begin;
    std::memcpy(reinterpret_cast<std::byte*>(&on_host) + operand.pointer_offset, &pointer,
                sizeof pointer);
  }
  if (copies.empty()) return Status::ok();
  RUNMAX_RETURN_IF_ERROR(device.sync(stream));
  return check_index_data(problem, on_host);
}

}  // namespace runmax
