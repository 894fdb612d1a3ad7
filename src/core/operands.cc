#include "core/operands.h"

#include <cstring>
#include <iterator>

namespace runmax {
namespace {

using P = runmax_problem;

#define RUNMAX_OPERAND(name, roles, type, like) \
  { #name, &P::name, offsetof(runmax_args, name), roles, TypeRule::type, like }

// Roles: forward, backward, merge, gradient of merge.
constexpr Operand kOperands[] = {
    RUNMAX_OPERAND(q, "II--", kStorage, nullptr),
    RUNMAX_OPERAND(k, "II--", kSameAsQ, nullptr),
    RUNMAX_OPERAND(v, "II--", kSameAsQ, nullptr),
    RUNMAX_OPERAND(partial_out, "--II", kStorage, nullptr),
    RUNMAX_OPERAND(partial_lse, "--II", kStatistics, nullptr),
    RUNMAX_OPERAND(out, "OIOI", kQOrF32, nullptr),
    RUNMAX_OPERAND(lse, "oIoI", kStatistics, nullptr),
    RUNMAX_OPERAND(lse_lo, "oi--", kStatistics, nullptr),

    RUNMAX_OPERAND(bias, "ii--", kQOrF32, nullptr),
    RUNMAX_OPERAND(mask, "ii--", kBool, nullptr),
    RUNMAX_OPERAND(alibi_slopes, "ii--", kStatistics, nullptr),
    RUNMAX_OPERAND(sink, "ii--", kStatistics, nullptr),

    RUNMAX_OPERAND(cu_seqlens_q, "ii--", kIndex, nullptr),
    RUNMAX_OPERAND(cu_seqlens_kv, "ii--", kIndex, nullptr),
    RUNMAX_OPERAND(seqused_q, "ii--", kIndex, nullptr),
    RUNMAX_OPERAND(seqused_kv, "ii--", kIndex, nullptr),
    RUNMAX_OPERAND(prefix_len, "ii--", kIndex, nullptr),
    RUNMAX_OPERAND(diagonal_offset, "ii--", kIndex, nullptr),
    RUNMAX_OPERAND(segment_ids_q, "ii--", kIndex, nullptr),
    RUNMAX_OPERAND(segment_ids_kv, "ii--", kIndex, nullptr),
    RUNMAX_OPERAND(block_index, "ii--", kIndex, nullptr),

    RUNMAX_OPERAND(d_out, "-i-i", kSameAsInput, &P::out),
    RUNMAX_OPERAND(d_lse, "-i-i", kSameAsInput, &P::lse),
    RUNMAX_OPERAND(d_q, "-o--", kSameAsInput, &P::q),
    RUNMAX_OPERAND(d_k, "-o--", kSameAsInput, &P::k),
    RUNMAX_OPERAND(d_v, "-o--", kSameAsInput, &P::v),
    RUNMAX_OPERAND(d_bias, "-o--", kSameAsInput, &P::bias),
    RUNMAX_OPERAND(d_sink, "-o--", kSameAsInput, &P::sink),
    RUNMAX_OPERAND(d_alibi_slopes, "-o--", kSameAsInput, &P::alibi_slopes),
    RUNMAX_OPERAND(d_partial_out, "---o", kSameAsInput, &P::partial_out),
    RUNMAX_OPERAND(d_partial_lse, "---o", kSameAsInput, &P::partial_lse),

    RUNMAX_OPERAND(page_table, "rrrr", kIndex, nullptr),
    RUNMAX_OPERAND(q_scale, "rrrr", kStatistics, nullptr),
    RUNMAX_OPERAND(k_scale, "rrrr", kStatistics, nullptr),
    RUNMAX_OPERAND(v_scale, "rrrr", kStatistics, nullptr),
    RUNMAX_OPERAND(max_logit, "rrrr", kStatistics, nullptr),
};

#undef RUNMAX_OPERAND

static_assert(std::size(kOperands) <= kMaxOperands);

}  // namespace

std::span<const Operand> operands() { return kOperands; }

Mode mode_of(const runmax_problem& problem) {
  if (problem.op == RUNMAX_FORWARD) return Mode::kForward;
  if (problem.op == RUNMAX_BACKWARD) return Mode::kBackward;
  for (const Operand& operand : kOperands) {
    // What only the gradient takes asks for it.
    const bool gradient_only = operand.role(Mode::kMerge) == Role::kForbidden &&
                               operand.role(Mode::kMergeGradient) != Role::kForbidden;
    if (gradient_only && Problem::present(problem.*operand.tensor)) return Mode::kMergeGradient;
  }
  return Mode::kMerge;
}

const char* mode_name(Mode mode) {
  constexpr const char* kNames[] = {"forward", "backward", "merge", "the gradient of merge"};
  return kNames[static_cast<int>(mode)];
}

const void* pointer_of(const Operand& operand, const runmax_args& args) {
  // Every pointer of the struct has the same representation; only the pointee's type differs.
  const void* pointer;
  std::memcpy(&pointer, reinterpret_cast<const char*>(&args) + operand.pointer_offset,
              sizeof pointer);
  return pointer;
}

std::string shape_field(const char* name, int dim) {
  return std::string(name) + ".shape[" + std::to_string(dim) + "]";
}

}  // namespace runmax
