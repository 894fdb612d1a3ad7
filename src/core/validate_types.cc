#include "core/tensor.h"
#include "core/validate.h"

namespace runmax {
namespace {

bool is_storage_type(int32_t dtype) {
  return dtype == RUNMAX_F32 || dtype == RUNMAX_F64 || dtype == RUNMAX_BF16 || dtype == RUNMAX_F16;
}

Status refuse(const char* name, int32_t dtype, const std::string& allowed) {
  return Status::invalid(std::string(name) + ".dtype",
                         std::string("is ") + dtype_name(dtype) + ", must be " + allowed);
}

Status check_type(const Operand& operand, const runmax_problem& problem, int32_t storage,
                  bool merge) {
  const int32_t dtype = (problem.*operand.tensor).dtype;
  const char* leader = merge ? "partial_out" : "q";
  const auto exactly = [&](int32_t expected, const char* whose) {
    if (dtype == expected) return Status::ok();
    return refuse(operand.name, dtype,
                  std::string(dtype_name(expected)) + " (the type of " + whose + ")");
  };
  switch (operand.type) {
    case TypeRule::kStorage:
      if (is_storage_type(dtype)) return Status::ok();
      return refuse(operand.name, dtype, "F32, F64, BF16 or F16");
    case TypeRule::kSameAsQ:
      return exactly(storage, leader);
    case TypeRule::kQOrF32:
      if (dtype == storage || dtype == RUNMAX_F32) return Status::ok();
      // Parts are kept in F32 so that a merge rounds once.
      if (merge && storage == RUNMAX_F32) {
        if (dtype == RUNMAX_BF16 || dtype == RUNMAX_F16) return Status::ok();
        return refuse(operand.name, dtype, "F32, BF16 or F16 (partial_out is F32)");
      }
      if (storage == RUNMAX_F32) return exactly(storage, leader);
      return refuse(operand.name, dtype,
                    std::string(dtype_name(storage)) + " (the type of " + leader + ") or F32");
    case TypeRule::kStatistics: {
      const int32_t expected = storage == RUNMAX_F64 ? RUNMAX_F64 : RUNMAX_F32;
      if (dtype == expected) return Status::ok();
      return refuse(
          operand.name, dtype,
          std::string(dtype_name(expected)) + " (" + leader + " is " + dtype_name(storage) + ")");
    }
    case TypeRule::kIndex:
      return dtype == RUNMAX_I32 ? Status::ok() : refuse(operand.name, dtype, "I32");
    case TypeRule::kBool:
      return dtype == RUNMAX_BOOL ? Status::ok() : refuse(operand.name, dtype, "BOOL");
    case TypeRule::kSameAsInput: {
      for (const Operand& other : operands()) {
        if (other.tensor == operand.like) {
          return exactly((problem.*other.tensor).dtype, other.name);
        }
      }
    }
  }
  return Status::ok();
}

}  // namespace

Status check_types(const runmax_problem& problem, Mode mode) {
  const bool merge = mode == Mode::kMerge || mode == Mode::kMergeGradient;
  const int32_t storage = merge ? problem.partial_out.dtype : problem.q.dtype;
  for (const Operand& operand : operands()) {
    if (!Problem::present(problem.*operand.tensor)) continue;
    RUNMAX_RETURN_IF_ERROR(check_type(operand, problem, storage, merge));
  }
  return Status::ok();
}

}  // namespace runmax
