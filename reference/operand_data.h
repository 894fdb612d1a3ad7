// What both directions of the oracle read and compute with.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "reference/number.h"
#include "reference/rows.h"

namespace runmax::reference {

// What an implementation computes in, as far as the gates care.
struct Arithmetic {
  double roundoff;
  double range;         // scores below it in magnitude are within the contract
  double output_range;  // sums of |v| below it, too
  double tiny_weight;   // weights below it may vanish ...
  double tiny;          // ... and so may products below this
};
inline Arithmetic arithmetic_of(runmax_dtype dtype) {
  if (dtype == RUNMAX_F64) return {0x1p-53, 0x1p1022, 0x1p1023, 0x1p-1022, 0x1p-1074};
  return {0x1p-24, 0x1p126, 0x1p127, 0x1p-126, 0x1p-149};
}

// Half the spacing of the type's numbers round a value, at most: what one rounding costs.
inline double rounding(runmax_dtype dtype, double value) {
  const Format type = format(dtype);
  return std::max(std::ldexp(std::fabs(value), -type.precision), type.tiny / 2);
}

// k or v of one head: [tokens, dim].
template <class Real>
struct Head {
  std::vector<Real> data;
  std::vector<unsigned char> finite;  // per token

  Head(const Definition& d, const runmax_tensor& tensor, const void* from, const Sequence& sequence,
       int64_t head, int64_t dim) {
    const int64_t stride = tensor.stride[tensor.rank - 1];
    data.reserve(static_cast<size_t>(sequence.kv_len * dim));
    for (int64_t token = 0; token < sequence.kv_len; ++token) {
      const int64_t at = d.offset(tensor, sequence, sequence.kv_start, head, token);
      bool all_finite = true;
      for (int64_t c = 0; c < dim; ++c) {
        data.push_back(load(tensor.dtype, from, at + c * stride));
        all_finite = all_finite && std::isfinite(data.back());
      }
      finite.push_back(all_finite);
    }
  }
};

// Row i of q or d_out, `dim` elements.
template <class Real>
std::vector<Real> query_row(const Row& row, const runmax_tensor& tensor, const void* from,
                            int64_t dim) {
  const int64_t at =
      row.definition.offset(tensor, row.sequence, row.sequence.q_start, row.head, row.i);
  std::vector<Real> data;
  for (int64_t c = 0; c < dim; ++c) {
    data.push_back(load(tensor.dtype, from, at + c * tensor.stride[tensor.rank - 1]));
  }
  return data;
}

}  // namespace runmax::reference
