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
template <class Wide>
class MergeRow {
 public:
  MergeRow(const Problem& problem, const runmax_args& args, int64_t row)
      : problem_(problem), args_(args), raw_(problem.raw), packed_(problem.raw.out.rank == 3) {
    const int64_t q_len = packed_ ? problem.total_q : problem.q_len;
    q_ = row % q_len;
    head_ = row / q_len % problem.q_heads;
    batch_ = row / q_len / problem.q_heads;
    for (int64_t i = 0; i < parts(); ++i) {
      const Wide lse = lse_of(i);
      nan_ |= std::isnan(lse) || lse == INFINITY;
      if (lse > top_) top_ = lse;
    }
    empty_ = top_ == kMinusInfinity && !nan_;
    for (int64_t i = 0; i < parts() && !empty_; ++i) sum_ += std::exp(lse_of(i) - top_);
  }

  void write() const {
    for (int64_t begin = 0; begin < columns(); begin += kBlock) {
      const int64_t count = std::min(kBlock, columns() - begin);
      Wide value[kBlock];
      std::fill_n(value, count, nan_ ? static_cast<Wide>(NAN) : Wide{0});
      for (int64_t i = 0; i < parts() && !empty_ && !nan_; ++i) {
        if (!live(i)) continue;
        const Wide w = weight(i);
        for (int64_t c = 0; c < count; ++c) value[c] += w * partial_out(i, begin + c);
      }
      for (int64_t c = 0; c < count; ++c) {
        store(raw_.out, args_.out, out_offset(raw_.out, 0, begin + c), value[c]);
      }
    }
    const Wide lse = nan_ ? static_cast<Wide>(NAN) : (empty_ ? top_ : top_ + std::log(sum_));
    const Wide rounded = raw_.lse.dtype == RUNMAX_F64 ? static_cast<Wide>(static_cast<double>(lse))
                                                      : static_cast<Wide>(static_cast<float>(lse));
    if (Problem::present(raw_.lse)) store(raw_.lse, args_.lse, lse_offset(raw_.lse, 0), lse);
    if (Problem::present(raw_.lse_lo)) {
      store(raw_.lse_lo, args_.lse_lo, lse_offset(raw_.lse_lo, 0), empty_ ? 0 : lse - rounded);
    }
  }

  //   d_partial_out_i = w_i d_out
  //   d_partial_lse_i = w_i (d_out . out_i - d_out . out + d_lse)
  // with out from the parts, not as it was rounded. Parts that are ignored get zeros.
  void write_gradients() const {
    Wide delta = 0;
    for (int64_t i = 0; i < parts(); ++i) {
      if (live(i)) delta += weight(i) * dot(i);
    }
    const Wide d_lse =
        Problem::present(raw_.d_lse) ? load(raw_.d_lse, args_.d_lse, lse_offset(raw_.d_lse, 0)) : 0;
    for (int64_t i = 0; i < parts(); ++i) {
      const Wide w = live(i) ? weight(i) : Wide{0};
      if (const runmax_tensor& t = raw_.d_partial_out; Problem::present(t)) {
        for (int64_t c = 0; c < columns(); ++c) {
          store(t, args_.d_partial_out, i * t.stride[0] + out_offset(t, 1, c),
                live(i) ? w * d_out(c) : Wide{0});
        }
      }
      if (const runmax_tensor& t = raw_.d_partial_lse; Problem::present(t)) {
        store(t, args_.d_partial_lse, i * t.stride[0] + lse_offset(t, 1),
              live(i) ? w * (dot(i) - delta + d_lse) : Wide{0});
      }
    }
  }

 private:
  int64_t parts() const { return problem_.num_partials; }
  int64_t columns() const { return raw_.out.shape[raw_.out.rank - 1]; }

  // Offset of this row in a tensor whose own axes start at `axis` (1 behind the axis of parts).
  int64_t out_offset(const runmax_tensor& t, int axis, int64_t column) const {
    const int64_t* stride = t.stride + axis;
    return column * t.stride[t.rank - 1] +
           (packed_ ? q_ * stride[0] + head_ * stride[1]
                    : batch_ * stride[0] + head_ * stride[1] + q_ * stride[2]);
  }
  int64_t lse_offset(const runmax_tensor& t, int axis) const {
    const int64_t* stride = t.stride + axis;
    return packed_ ? head_ * stride[0] + q_ * stride[1]
                   : batch_ * stride[0] + head_ * stride[1] + q_ * stride[2];
  }

  Wide lse_of(int64_t i) const {
    const runmax_tensor& t = raw_.partial_lse;
    return load(t, args_.partial_lse, i * t.stride[0] + lse_offset(t, 1));
  }
  bool live(int64_t i) const { return lse_of(i) != kMinusInfinity; }
  Wide weight(int64_t i) const {
    return nan_ ? static_cast<Wide>(NAN) : std::exp(lse_of(i) - top_) / sum_;
  }
  Wide partial_out(int64_t i, int64_t column) const {
    const runmax_tensor& t = raw_.partial_out;
    return load(t, args_.partial_out, i * t.stride[0] + out_offset(t, 1, column));
  }
  Wide d_out(int64_t column) const {
    if (!Problem::present(raw_.d_out)) return 0;
    return load(raw_.d_out, args_.d_out, out_offset(raw_.d_out, 0, column));
  }
  Wide dot(int64_t i) const {
    Wide sum = 0;
    if (!Problem::present(raw_.d_out)) return sum;
    for (int64_t c = 0; c < columns(); ++c) sum += d_out(c) * partial_out(i, c);
    return sum;
  }

  const Problem& problem_;
  const runmax_args& args_;
  const runmax_problem& raw_;
  const bool packed_;
  int64_t q_ = 0, head_ = 0, batch_ = 0;
  Wide top_ = kMinusInfinity;
  Wide sum_ = 0;
  bool nan_ = false;
  bool empty_ = false;
};

struct Rows {
  const Problem& problem;
  const runmax_args& args;
  bool gradients;

  template <class Wide>
  void run(int64_t row) const {
    const MergeRow<Wide> merge(problem, args, row);
    gradients ? merge.write_gradients() : merge.write();
  }
  static void task(void* self, int64_t row, int32_t) {
    const Rows& rows = *static_cast<const Rows*>(self);
    rows.problem.raw.partial_lse.dtype == RUNMAX_F64 ? rows.run<long double>(row)
                                                     : rows.run<double>(row);
  }
};

}  // namespace

const char* merge_supports(const Problem&, const DeviceInfo&) { return nullptr; }

Config merge_configure(const Problem&, const DeviceInfo&, Workspace&) { return {}; }

double merge_cost(const Problem&, const DeviceInfo&, const Config&) { return 0; }

Status merge_launch(const Launch& launch) {
  const runmax_problem& raw = launch.problem.raw;
  const bool gradients = Problem::present(raw.d_partial_out) || Problem::present(raw.d_partial_lse);
  Rows rows{launch.problem, launch.args, gradients};
  const int64_t count = launch.problem.q_heads * launch.problem.total_q;
  launch.device.parallel_for(count, Rows::task, &rows);
  return Status::ok();
}

}  // namespace runmax::cpu
