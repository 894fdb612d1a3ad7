// The parts of validate(), in the order in which they run. Each refuses with one Status; messages
// are only put together on that path.
#pragma once

#include <cstdint>
#include <string>

#include "core/operands.h"
#include "core/problem.h"
#include "core/status.h"

namespace runmax {

// No dimension, length or block is longer: positions, their sums and products with small factors
// stay within int64.
inline constexpr int64_t kMaxLength = int64_t{1} << 40;
// Elements of a tensor, and query/key pairs of a problem.
inline constexpr int64_t kMaxCount = int64_t{1} << 62;
// Bytes between the first and the last element of a tensor.
inline constexpr int64_t kMaxExtent = int64_t{1} << 60;

// One tensor description by itself: dtype code, rank, shape, strides, alignment, storage.
Status check_tensor(const char* name, const runmax_tensor& tensor, bool output);

// The types of all operands against each other.
Status check_types(const runmax_problem& problem, Mode mode);

// The shapes of all operands against each other; fills the dimensions of `problem`.
Status check_shapes(Problem& problem, Mode mode);

// Scale, window, blocks, dropout, ...; fills the resolved values of `problem`.
Status check_options(Problem& problem, Mode mode);

// Shortest text that reads back as the same number.
std::string to_text(double value);
inline std::string to_text(int64_t value) { return std::to_string(value); }
inline std::string to_text(uint64_t value) { return std::to_string(value); }
inline std::string to_text(int32_t value) { return std::to_string(value); }

}  // namespace runmax
