#include "core/validate.h"

#include "core/abi.h"

namespace runmax {
namespace {

constexpr uint64_t kPresentBits =
    RUNMAX_PRESENT_SCALE | RUNMAX_PRESENT_WINDOW_LEFT | RUNMAX_PRESENT_WINDOW_RIGHT;
constexpr uint64_t kFlagBits = RUNMAX_CAUSAL | RUNMAX_DETERMINISTIC | RUNMAX_BATCH_INVARIANT |
                               RUNMAX_KEEP_UNUSED | RUNMAX_CHECKED | RUNMAX_ALLOW_TF32;

Status check_bits(const char* field, uint64_t value, uint64_t known) {
  const uint64_t unknown = value & ~known;
  if (unknown == 0) return Status::ok();
  return Status::invalid(field, "has unknown bit " + std::to_string(__builtin_ctzll(unknown)) +
                                    " set, must be a combination of RUNMAX_* bits");
}

// Is every operand there that the operation needs, and none that it would ignore?
Status check_roles(const runmax_problem& raw, Mode mode) {
  for (const Operand& operand : operands()) {
    const bool present = Problem::present(raw.*operand.tensor);
    const Role role = operand.role(mode);
    if (present && role == Role::kReserved) {
      return Status::unsupported(operand.name,
                                 "is present, must be absent: it is reserved for a later release");
    }
    if (present && role == Role::kForbidden) {
      return Status::invalid(operand.name,
                             std::string("is present, must be absent for ") + mode_name(mode));
    }
    if (!present && (role == Role::kRequiredInput || role == Role::kRequiredOutput)) {
      return Status::invalid(operand.name,
                             std::string("is absent, must be present for ") + mode_name(mode));
    }
  }
  return Status::ok();
}

Status needs(const char* field, bool present, const char* other, bool other_present) {
  if (!present || other_present) return Status::ok();
  return Status::invalid(
      field, std::string("is present without ") + other + ", must be absent or come with it");
}

// Operands that only make sense together.
Status check_companions(const runmax_problem& raw, Mode mode) {
  constexpr auto has = &Problem::present;
  RUNMAX_RETURN_IF_ERROR(
      needs("cu_seqlens_q", has(raw.cu_seqlens_q), "cu_seqlens_kv", has(raw.cu_seqlens_kv)));
  RUNMAX_RETURN_IF_ERROR(
      needs("cu_seqlens_kv", has(raw.cu_seqlens_kv), "cu_seqlens_q", has(raw.cu_seqlens_q)));
  RUNMAX_RETURN_IF_ERROR(
      needs("segment_ids_q", has(raw.segment_ids_q), "segment_ids_kv", has(raw.segment_ids_kv)));
  RUNMAX_RETURN_IF_ERROR(
      needs("segment_ids_kv", has(raw.segment_ids_kv), "segment_ids_q", has(raw.segment_ids_q)));
  RUNMAX_RETURN_IF_ERROR(needs("lse_lo", has(raw.lse_lo), "lse", has(raw.lse)));
  RUNMAX_RETURN_IF_ERROR(needs("d_bias", has(raw.d_bias), "bias", has(raw.bias)));
  RUNMAX_RETURN_IF_ERROR(needs("d_sink", has(raw.d_sink), "sink", has(raw.sink)));
  RUNMAX_RETURN_IF_ERROR(
      needs("d_alibi_slopes", has(raw.d_alibi_slopes), "alibi_slopes", has(raw.alibi_slopes)));

  if (mode != Mode::kBackward && mode != Mode::kMergeGradient) return Status::ok();
  if (!has(raw.d_out) && !has(raw.d_lse)) {
    return Status::invalid("d_out", std::string("is absent like d_lse, must be present (or d_lse) "
                                                "for ") +
                                        mode_name(mode));
  }
  for (const Operand& operand : operands()) {
    if (operand.role(mode) == Role::kOutput && has(raw.*operand.tensor)) return Status::ok();
  }
  const char* first = mode == Mode::kBackward ? "d_q" : "d_partial_out";
  return Status::invalid(first, std::string("is absent like every other gradient, must be present "
                                            "(or another) for ") +
                                    mode_name(mode));
}

}  // namespace

Result<Problem> validate(const runmax_problem& caller) {
  Problem problem;
  runmax_problem& raw = problem.raw;
  RUNMAX_RETURN_IF_ERROR(import_struct(caller, kFirstProblemSize, raw));
  if (raw.op != RUNMAX_FORWARD && raw.op != RUNMAX_BACKWARD && raw.op != RUNMAX_MERGE) {
    return Status::invalid("op", "is " + std::to_string(raw.op) +
                                     ", must be RUNMAX_FORWARD (0), RUNMAX_BACKWARD (1) or "
                                     "RUNMAX_MERGE (2)");
  }
  RUNMAX_RETURN_IF_ERROR(check_bits("present", raw.present, kPresentBits));
  RUNMAX_RETURN_IF_ERROR(check_bits("flags", raw.flags, kFlagBits));

  const Mode mode = mode_of(raw);
  RUNMAX_RETURN_IF_ERROR(check_roles(raw, mode));
  for (const Operand& operand : operands()) {
    RUNMAX_RETURN_IF_ERROR(
        check_tensor(operand.name, raw.*operand.tensor, is_output(operand.role(mode))));
  }
  RUNMAX_RETURN_IF_ERROR(check_companions(raw, mode));
  RUNMAX_RETURN_IF_ERROR(check_types(raw, mode));
  RUNMAX_RETURN_IF_ERROR(check_shapes(problem, mode));
  RUNMAX_RETURN_IF_ERROR(check_options(problem, mode));

  if (raw.kernel != nullptr) problem.kernel = raw.kernel;
  raw.kernel = nullptr;
  return problem;
}

}  // namespace runmax
