#include "reference/plain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "reference/number.h"
#include "reference/plain_product.h"
#include "reference/plain_softmax.h"
#include "reference/rows.h"

namespace runmax::reference {
namespace {

constexpr int64_t kChunk = 48;  // rows that a thread takes at a time

// Element counts of the buffers: those of the longest sequences.
struct Sizes {
  int64_t q_len = 0, kv_len = 0;
  int64_t q, k, v, scores, out, total;

  Sizes(const Definition& d, int64_t panel) {
    for (const Sequence& sequence : d.sequences) {
      q_len = std::max(q_len, sequence.q_len);
      kv_len = std::max(kv_len, sequence.kv_len);
    }
    q = q_len * d.head_dim;
    k = round_up(kv_len, panel) * d.head_dim;
    v = kv_len * round_up(d.head_dim_v, panel);
    scores = q_len * round_up(kv_len, panel);
    out = q_len * round_up(d.head_dim_v, panel);
    total = q + k + v + scores + out;
  }
};

template <class Real>
class Plain {
 public:
  Plain(const Definition& definition, int threads)
      : d_(definition),
        sizes_(definition, kPanel<Real>),
        threads_(threads),
        memory_(allocate(sizes_.total)) {
    if (memory_ == nullptr) return;
    q_ = memory_.get();
    k_ = q_ + sizes_.q;
    v_ = k_ + sizes_.k;
    scores_ = v_ + sizes_.v;
    out_ = scores_ + sizes_.scores;
  }

  bool has_memory() const { return memory_ != nullptr; }

  void run() {
    for (const Sequence& sequence : d_.sequences) {
      for (int64_t kv_head = 0; kv_head < d_.kv_heads; ++kv_head) {
        pack_k(sequence, kv_head);
        pack_v(sequence, kv_head);
        for (int64_t g = 0; g < d_.group_size; ++g) {
          run_head(sequence, kv_head * d_.group_size + g, kv_head);
        }
      }
    }
  }

 private:
  static Real* allocate(int64_t count) {
    constexpr int64_t kAddressSpace = int64_t{1} << 47;
    if (count > kAddressSpace / static_cast<int64_t>(sizeof(Real))) return nullptr;
    return new (std::nothrow) Real[static_cast<size_t>(std::max<int64_t>(count, 1))];
  }

  void run_head(const Sequence& s, int64_t head, int64_t kv_head) {
    const int64_t row_stride = round_up(s.kv_len, kPanel<Real>);
    const int64_t out_stride = round_up(d_.head_dim_v, kPanel<Real>);
    unpack_q(s, head);
    for_chunks(s, [&](int64_t begin, int64_t count) {
      product(q_ + begin * d_.head_dim, d_.head_dim, k_, scores_ + begin * row_stride, row_stride,
              count, s.kv_len, d_.head_dim);
    });
    for_chunks(s, [&](int64_t begin, int64_t count) {
      for (int64_t i = begin; i < begin + count; ++i) {
        softmax(Row(d_, s, head, i), scores_ + i * row_stride);
      }
    });
    for_chunks(s, [&](int64_t begin, int64_t count) {
      product(scores_ + begin * row_stride, row_stride, v_, out_ + begin * out_stride, out_stride,
              count, d_.head_dim_v, s.kv_len);
      for (int64_t i = begin; i < begin + count; ++i) {
        add_not_finite(Row(d_, s, head, i), kv_head, scores_ + i * row_stride,
                       out_ + i * out_stride);
        write_out(s, head, i, out_ + i * out_stride);
      }
    });
  }

  template <class Body>
  void for_chunks(const Sequence& s, const Body& body) const {
    const double work = static_cast<double>(s.q_len) * static_cast<double>(s.kv_len) *
                        static_cast<double>(d_.head_dim + d_.head_dim_v);
    parallel((s.q_len + kChunk - 1) / kChunk, work, threads_, [&](int64_t chunk) {
      const int64_t begin = chunk * kChunk;
      body(begin, std::min(kChunk, s.q_len - begin));
    });
  }

  void unpack_q(const Sequence& s, int64_t head) {
    const runmax_tensor& q = d_.problem.q;
    for (int64_t i = 0; i < s.q_len; ++i) {
      const int64_t at = d_.offset(q, s, s.q_start, head, i);
      for (int64_t c = 0; c < d_.head_dim; ++c) {
        q_[i * d_.head_dim + c] =
            static_cast<Real>(load(q.dtype, d_.args.q, at + c * q.stride[q.rank - 1]));
      }
    }
  }

  void pack_k(const Sequence& s, int64_t head) {
    const runmax_tensor& k = d_.problem.k;
    constexpr int64_t kWidth = kPanel<Real>;
    std::fill_n(k_, round_up(s.kv_len, kWidth) * d_.head_dim, Real(0));
    for (int64_t key = 0; key < s.kv_len; ++key) {
      const int64_t at = d_.offset(k, s, s.kv_start, head, key);
      Real* panel = k_ + key / kWidth * kWidth * d_.head_dim + key % kWidth;
      for (int64_t c = 0; c < d_.head_dim; ++c) {
        panel[c * kWidth] =
            static_cast<Real>(load(k.dtype, d_.args.k, at + c * k.stride[k.rank - 1]));
      }
    }
  }

  // Values that are not finite go in as zero, so that a weight of 0 removes them; the rows that see
  // them get them back from add_not_finite().
  void pack_v(const Sequence& s, int64_t head) {
    const runmax_tensor& v = d_.problem.v;
    constexpr int64_t kWidth = kPanel<Real>;
    std::fill_n(v_, s.kv_len * round_up(d_.head_dim_v, kWidth), Real(0));
    not_finite_.clear();
    for (int64_t key = 0; key < s.kv_len; ++key) {
      const int64_t at = d_.offset(v, s, s.kv_start, head, key);
      bool finite = true;
      for (int64_t c = 0; c < d_.head_dim_v; ++c) {
        const double value = load(v.dtype, d_.args.v, at + c * v.stride[v.rank - 1]);
        finite = finite && std::isfinite(value);
        v_[c / kWidth * kWidth * s.kv_len + key * kWidth + c % kWidth] =
            static_cast<Real>(std::isfinite(value) ? value : 0);
      }
      if (!finite) not_finite_.push_back(key);
    }
  }

  // Turns the dot products of a row into the weights of v, in place, and writes its lse.
  void softmax(const Row& row, Real* x) const {
    const PlainRow<Real> result = plain_softmax(row, x);
    const int64_t kv_len = row.sequence.kv_len;
    if (d_.problem.dropout != 0 && result.visible > 0) {
      for (int64_t key = 0; key < kv_len; ++key) {
        x[key] *= static_cast<Real>(row.dropout_factor(key));
      }
    }
    round_weights(x, kv_len, d_.problem.q.dtype);
    write_lse(row, result.max, result.log_sum);
  }

  void add_not_finite(const Row& row, int64_t kv_head, const Real* probs, Real* out) const {
    const runmax_tensor& v = d_.problem.v;
    for (const int64_t key : not_finite_) {
      if (!row.sees(key)) continue;
      const int64_t at = d_.offset(v, row.sequence, row.sequence.kv_start, kv_head, key);
      for (int64_t c = 0; c < d_.head_dim_v; ++c) {
        const double value = load(v.dtype, d_.args.v, at + c * v.stride[v.rank - 1]);
        if (!std::isfinite(value)) out[c] += probs[key] * static_cast<Real>(value);
      }
    }
  }

  void write_out(const Sequence& s, int64_t head, int64_t i, const Real* row) const {
    const runmax_tensor& out = d_.problem.out;
    const int64_t at = d_.offset(out, s, s.q_start, head, i);
    for (int64_t c = 0; c < d_.head_dim_v; ++c) {
      store(out.dtype, d_.args.out, at + c * out.stride[out.rank - 1], static_cast<double>(row[c]));
    }
  }

  // lse = max + log_sum, in double, rounded once; lse_lo is what that lost.
  void write_lse(const Row& row, Real max, double log_sum) const {
    const runmax_problem& p = d_.problem;
    const int64_t number = d_.lse_index(row.sequence, row.head, row.i);
    const double a = static_cast<double>(max), lse = a + log_sum;
    if (present(p.lse)) store(p.lse.dtype, d_.args.lse, element_offset(p.lse, number), lse);
    if (present(p.lse_lo)) {
      // What the double addition lost, whichever addend is larger, and what the type does.
      const double b = lse - a, lost = (a - (lse - b)) + (log_sum - b);
      const double lo = std::isinf(lse) ? 0 : lse - round_to(p.lse_lo.dtype, lse) + lost;
      store(p.lse_lo.dtype, d_.args.lse_lo, element_offset(p.lse_lo, number), lo);
    }
  }

  const Definition& d_;
  const Sizes sizes_;
  const int threads_;
  const std::unique_ptr<Real[]> memory_;
  Real *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *scores_ = nullptr, *out_ = nullptr;
  std::vector<int64_t> not_finite_;  // keys of the current head
};

// Rows of no sequence, and those that a sequence overwrites after.
void fill(const runmax_tensor& tensor, void* data, double value) {
  if (!present(tensor)) return;
  const int64_t count = element_count(tensor);
  for (int64_t number = 0; number < count; ++number) {
    store(tensor.dtype, data, element_offset(tensor, number), value);
  }
}

template <class Real>
bool run(const Definition& definition, int threads) {
  Plain<Real> plain(definition, threads);
  if (!plain.has_memory()) return false;
  if ((definition.problem.flags & RUNMAX_KEEP_UNUSED) == 0) {
    fill(definition.problem.out, definition.args.out, 0);
    fill(definition.problem.lse, definition.args.lse, -std::numeric_limits<double>::infinity());
    fill(definition.problem.lse_lo, definition.args.lse_lo, 0);
  }
  plain.run();
  return true;
}

}  // namespace

uint64_t plain_memory(const runmax_problem& problem, const runmax_args& args) {
  const Definition definition(problem, args);
  return problem.q.dtype == RUNMAX_F64
             ? static_cast<uint64_t>(Sizes(definition, kPanel<double>).total) * sizeof(double)
             : static_cast<uint64_t>(Sizes(definition, kPanel<float>).total) * sizeof(float);
}

bool plain_forward(const runmax_problem& problem, const runmax_args& args,
                   const PlainOptions& options) {
  if (options.memory_limit != 0 && plain_memory(problem, args) > options.memory_limit) return false;
  const Definition definition(problem, args);
  try {
    return problem.q.dtype == RUNMAX_F64 ? run<double>(definition, options.threads)
                                         : run<float>(definition, options.threads);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace runmax::reference
