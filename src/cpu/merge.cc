// Merge: results of attention over disjoint sets of keys become the result over their union.
//
//   M = max_i lse_i;  w_i = exp(lse_i - M);  out = sum_i w_i out_i / sum_i w_i;  lse = M + log(sum
//   w)
//
// A part with lse -inf saw no key and is ignored, whatever its out holds. In double (long double
// for F64), in the order of the parts: one rounding per result.
#include <algorithm>
#include <cmath>

#include "core/dtype.h"
#include "cpu/forward_launch.h"

namespace runmax::cpu {

namespace {

constexpr double kMinusInfinity = -INFINITY;
constexpr int64_t kBlock = 64;  // columns whose sums are held at once

double load(const runmax_tensor& t, const void* pointer, int64_t offset) {
  switch (t.dtype) {
    case RUNMAX_F64:
      return static_cast<const double*>(pointer)[offset];
    case RUNMAX_BF16:
      return to_float(static_cast<const Bf16*>(pointer)[offset]);
    case RUNMAX_F16:
      return to_float(static_cast<const F16*>(pointer)[offset]);
    default:
      return static_cast<const float*>(pointer)[offset];
  }
}

void store(const runmax_tensor& t, void* pointer, int64_t offset, long double value) {
  switch (t.dtype) {
    case RUNMAX_F64:
      static_cast<double*>(pointer)[offset] = static_cast<double>(value);
      return;
    case RUNMAX_BF16:
      static_cast<Bf16*>(pointer)[offset] = to_bf16(static_cast<float>(value));
      return;
    case RUNMAX_F16:
      static_cast<F16*>(pointer)[offset] = to_f16(static_cast<float>(value));
      return;
    default:
      static_cast<float*>(pointer)[offset] = static_cast<float>(value);
  }
}

// One row of out, by the flat index of its lse: dense [batch, q_heads, q_len], packed
// [q_heads, total_q].
struct Rows {
  const Problem& problem;
  const runmax_args& args;

  template <class Wide>
  void merge(int64_t row) const;
};

template <class Wide>
void Rows::merge(int64_t row) const {
  const runmax_problem& raw = problem.raw;
  // Offsets of this row in out and in the per-row tensors; `part` shifts strides by the part axis.
  const bool packed = raw.out.rank == 3;
  const int64_t q_len = packed ? problem.total_q : problem.q_len;
  const int64_t q = row % q_len;
  const int64_t head = row / q_len % problem.q_heads;
  const int64_t batch = row / q_len / problem.q_heads;
  const auto out_offset = [&](const runmax_tensor& t, int part) {
    return packed ? q * t.stride[part] + head * t.stride[part + 1]
                  : batch * t.stride[part] + head * t.stride[part + 1] + q * t.stride[part + 2];
  };
  const auto lse_offset = [&](const runmax_tensor& t, int part) {
    return packed ? head * t.stride[part] + q * t.stride[part + 1]
                  : batch * t.stride[part] + head * t.stride[part + 1] + q * t.stride[part + 2];
  };

  const int64_t parts = problem.num_partials;
  const int64_t partial_lse = lse_offset(raw.partial_lse, 1);
  const auto lse_of = [&](int64_t i) -> Wide {
    return load(raw.partial_lse, args.partial_lse, i * raw.partial_lse.stride[0] + partial_lse);
  };
  Wide top = kMinusInfinity;
  bool nan = false;
  for (int64_t i = 0; i < parts; ++i) {
    const Wide lse = lse_of(i);
    nan |= std::isnan(lse) || lse == INFINITY;
    if (lse > top) top = lse;
  }
  const bool empty = top == kMinusInfinity && !nan;
  Wide sum = 0;
  for (int64_t i = 0; i < parts && !empty; ++i) sum += std::exp(lse_of(i) - top);

  const int64_t out = out_offset(raw.out, 0);
  const int64_t partial_out = out_offset(raw.partial_out, 1);
  const int64_t columns = raw.out.shape[raw.out.rank - 1];
  const int64_t out_column = raw.out.stride[raw.out.rank - 1];
  const int64_t partial_column = raw.partial_out.stride[raw.partial_out.rank - 1];
  for (int64_t begin = 0; begin < columns; begin += kBlock) {
    const int64_t count = std::min(kBlock, columns - begin);
    Wide value[kBlock];
    std::fill_n(value, count, nan ? static_cast<Wide>(NAN) : Wide{0});
    for (int64_t i = 0; i < parts && !empty && !nan; ++i) {
      if (lse_of(i) == kMinusInfinity) continue;
      const Wide weight = std::exp(lse_of(i) - top) / sum;
      const int64_t from = i * raw.partial_out.stride[0] + partial_out + begin * partial_column;
      for (int64_t d = 0; d < count; ++d) {
        value[d] += weight * load(raw.partial_out, args.partial_out, from + d * partial_column);
      }
    }
    for (int64_t d = 0; d < count; ++d) {
      store(raw.out, args.out, out + (begin + d) * out_column, value[d]);
    }
  }
  const Wide lse = nan ? static_cast<Wide>(NAN) : (empty ? top : top + std::log(sum));
  const Wide rounded = raw.lse.dtype == RUNMAX_F64 ? static_cast<Wide>(static_cast<double>(lse))
                                                   : static_cast<Wide>(static_cast<float>(lse));
  if (Problem::present(raw.lse)) store(raw.lse, args.lse, lse_offset(raw.lse, 0), lse);
  if (Problem::present(raw.lse_lo)) {
    store(raw.lse_lo, args.lse_lo, lse_offset(raw.lse_lo, 0), empty ? 0 : lse - rounded);
  }
}

void merge_task(void* self, int64_t row, int32_t) {
  const Rows& rows = *static_cast<const Rows*>(self);
  if (rows.problem.raw.out.dtype == RUNMAX_F64) {
    rows.merge<long double>(row);
  } else {
    rows.merge<double>(row);
  }
}

}  // namespace

const char* merge_supports(const Problem& problem, const DeviceInfo&) {
  if (Problem::present(problem.raw.d_partial_out) || Problem::present(problem.raw.d_partial_lse)) {
    return "d_partial_out: the gradients of merge have no kernel yet";
  }
  return nullptr;
}

Config merge_configure(const Problem&, const DeviceInfo&, Workspace&) { return {}; }

double merge_cost(const Problem&, const DeviceInfo&, const Config&) { return 0; }

Status merge_launch(const Launch& launch) {
  Rows rows{launch.problem, launch.args};
  const int64_t count = launch.problem.q_heads * launch.problem.total_q;
  launch.device.parallel_for(count, merge_task, &rows);
  return Status::ok();
}

}  // namespace runmax::cpu
