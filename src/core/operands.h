// The one list of operands: name, place in the public structs, type, and which operation takes it
// in which role. Validation and the argument check walk it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/problem.h"
#include "runmax/runmax.h"

namespace runmax {

// What an operation does with an operand.
enum class Role : char {
  kForbidden = '-',
  kReserved = 'r',  // for a later release
  kInput = 'i',
  kRequiredInput = 'I',
  kOutput = 'o',
  kRequiredOutput = 'O',
};

// Which element types an operand may have.
enum class TypeRule : char {
  kStorage,     // F32, F64, BF16, F16: the type that the others follow
  kSameAsQ,     // exactly the problem's storage type
  kQOrF32,      // the storage type, or F32 (out of a merge of F32 parts: also a 16-bit type)
  kStatistics,  // F32, or F64 when the storage type is
  kIndex,       // I32
  kBool,
  kSameAsInput  // gradients: the type of their input
};

// Columns of Operand::roles. Merge with d_out or d_lse is its own gradient.
enum class Mode : int { kForward, kBackward, kMerge, kMergeGradient };

struct Operand {
  const char* name;
  runmax_tensor runmax_problem::*tensor;
  size_t pointer_offset;  // in runmax_args
  char roles[5];          // by Mode
  TypeRule type;
  runmax_tensor runmax_problem::*like;  // gradients: the operand whose shape and type they have

  Role role(Mode mode) const { return static_cast<Role>(roles[static_cast<int>(mode)]); }
};

std::span<const Operand> operands();
inline constexpr size_t kMaxOperands = 40;  // room for a list of them without allocation

// The mode of a problem whose op is known.
Mode mode_of(const runmax_problem& problem);
const char* mode_name(Mode mode);

inline bool is_output(Role role) { return role == Role::kOutput || role == Role::kRequiredOutput; }
inline bool is_input(Role role) { return role == Role::kInput || role == Role::kRequiredInput; }

// The operand's pointer in args.
const void* pointer_of(const Operand& operand, const runmax_args& args);

// "q.shape[2]"
std::string shape_field(const char* name, int dim);

}  // namespace runmax
