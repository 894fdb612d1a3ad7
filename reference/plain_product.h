// The arithmetic of the plain computation: a blocked matrix product and a correctly rounded exp,
// vectorised for the machine it runs on.
#pragma once

#include <cstdint>

#include "runmax/runmax.h"

namespace runmax::reference {

// The right-hand matrix of a product is packed in panels of this many columns,
// [panel][depth][kPanel], the last one padded with zeros.
template <class Real>
inline constexpr int64_t kPanel = 64 / static_cast<int64_t>(sizeof(Real));

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// c[rows, columns] = a[rows, depth] * panels. Rows of c have room for whole panels. Sums run over
// blocks of depth, each from zero.
void product(const float* a, int64_t a_stride, const float* panels, float* c, int64_t c_stride,
             int64_t rows, int64_t columns, int64_t depth);
void product(const double* a, int64_t a_stride, const double* panels, double* c, int64_t c_stride,
             int64_t rows, int64_t columns, int64_t depth);

// Replaces x by exp(x - max), for x <= max and -inf, and returns the sum over 16 (8) partial sums.
float exp_and_sum(float* x, int64_t size, float max);
double exp_and_sum(double* x, int64_t size, double max);

// Rounds weights to BF16 or F16; other types are left as they are.
void round_weights(float* x, int64_t size, runmax_dtype type);
inline void round_weights(double*, int64_t, runmax_dtype) {}

}  // namespace runmax::reference
