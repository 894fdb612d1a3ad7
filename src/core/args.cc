#include "core/args.h"

#include <algorithm>
#include <array>

#include "core/abi.h"
#include "core/index_data.h"
#include "core/operands.h"
#include "core/tensor.h"

namespace runmax {
namespace {

// An operand that has elements, with its pointer.
struct Bound {
  const Operand* operand;
  const runmax_tensor* tensor;
  const void* pointer;
  bool output;
};

struct BoundList {
  std::array<Bound, kMaxOperands> data;
  size_t count = 0;
};

Status check_pointer(const Bound& bound) {
  if (bound.pointer == nullptr) {
    return Status::invalid(bound.operand->name, "is NULL, must point to the tensor's " +
                                                    std::to_string(element_count(*bound.tensor)) +
                                                    " elements");
  }
  const int64_t alignment =
      std::max<int64_t>(dtype_size(bound.tensor->dtype), bound.tensor->min_alignment);
  const auto address = reinterpret_cast<uintptr_t>(bound.pointer);
  const int64_t past = static_cast<int64_t>(address % static_cast<uintptr_t>(alignment));
  if (past == 0) return Status::ok();
  return Status::invalid(bound.operand->name,
                         "is " + std::to_string(past) + " bytes past a multiple of " +
                             std::to_string(alignment) + ", must be aligned to " +
                             std::to_string(alignment) + " bytes");
}

Status bind(const Problem& problem, Mode mode, const runmax_args& args, BoundList& bounds) {
  for (const Operand& operand : operands()) {
    const runmax_tensor& tensor = problem.raw.*operand.tensor;
    if (element_count(tensor) == 0) continue;
    const Bound bound{&operand, &tensor, pointer_of(operand, args), is_output(operand.role(mode))};
    RUNMAX_RETURN_IF_ERROR(check_pointer(bound));
    bounds.data[bounds.count++] = bound;
  }
  return Status::ok();
}

Status check_overlap(const BoundList& bounds) {
  for (size_t i = 0; i < bounds.count; ++i) {
    const Bound& a = bounds.data[i];
    if (!a.output) continue;
    for (size_t j = 0; j < bounds.count; ++j) {
      const Bound& b = bounds.data[j];
      if (j == i || (b.output && j < i)) continue;  // each pair once
      if (!share_elements(*a.tensor, a.pointer, *b.tensor, b.pointer)) continue;
      return Status::invalid(a.operand->name, std::string("shares elements with ") +
                                                  b.operand->name +
                                                  ", must overlap no other operand");
    }
  }
  return Status::ok();
}

Status check_random(const char* field, const uint64_t* pointer, const char* value_name,
                    uint64_t value) {
  if (pointer == nullptr) return Status::ok();
  if (value != 0) {
    return Status::invalid(field, std::string("is set beside ") + value_name + " (" +
                                      std::to_string(value) + "), must be NULL or " + value_name +
                                      " 0");
  }
  if (reinterpret_cast<uintptr_t>(pointer) % alignof(uint64_t) == 0) return Status::ok();
  return Status::invalid(field, "is misaligned, must be aligned to 8 bytes");
}

}  // namespace

Status check_args(const Problem& problem, const runmax_args& caller, bool read_index_data) {
  runmax_args args;
  RUNMAX_RETURN_IF_ERROR(import_struct(caller, kFirstArgsSize, args));
  if (args.reserved != 0) {
    return Status::invalid("reserved", "is " + std::to_string(args.reserved) + ", must be 0");
  }
  const Mode mode = mode_of(problem.raw);
  BoundList bounds;
  RUNMAX_RETURN_IF_ERROR(bind(problem, mode, args, bounds));
  RUNMAX_RETURN_IF_ERROR(check_overlap(bounds));
  RUNMAX_RETURN_IF_ERROR(check_random("seed_pointer", args.seed_pointer, "seed", args.seed));
  RUNMAX_RETURN_IF_ERROR(
      check_random("offset_pointer", args.offset_pointer, "offset", args.offset));
  return read_index_data ? check_index_data(problem, args) : Status::ok();
}

Status check_workspace_apart(const Problem& problem, const runmax_args& args, const void* workspace,
                             size_t bytes) {
  const runmax_tensor region = make_tensor(RUNMAX_BOOL, {static_cast<int64_t>(bytes)});
  for (const Operand& operand : operands()) {
    const runmax_tensor& tensor = problem.raw.*operand.tensor;
    if (!share_elements(tensor, pointer_of(operand, args), region, workspace)) continue;
    return Status::invalid("workspace", std::string("shares memory with ") + operand.name +
                                            ", must overlap no operand");
  }
  return Status::ok();
}

}  // namespace runmax
