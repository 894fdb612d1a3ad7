#include <algorithm>
#include <cmath>
#include <new>
#include <vector>

#include "reference/number.h"
#include "reference/plain.h"
#include "reference/plain_product.h"
#include "reference/plain_softmax.h"
#include "reference/rows.h"

namespace runmax::reference {
namespace {

// A right-hand matrix of a product, [depth, columns], in panels. element(d, c) gives it.
template <class Real, class Element>
std::vector<Real> panels_of(int64_t depth, int64_t columns, const Element& element) {
  constexpr int64_t kWidth = kPanel<Real>;
  std::vector<Real> panels(static_cast<size_t>(depth * round_up(columns, kWidth)));
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t d = 0; d < depth; ++d) {
      const int64_t at = c / kWidth * kWidth * depth + d * kWidth + c % kWidth;
      panels[static_cast<size_t>(at)] = element(d, c);
    }
  }
  return panels;
}

// A matrix whose rows have room for whole panels, as products write it.
template <class Real>
struct Matrix {
  int64_t rows, columns, stride;
  std::vector<Real> data;

  Matrix(int64_t rows, int64_t columns)
      : rows(rows),
        columns(columns),
        stride(round_up(columns, kPanel<Real>)),
        data(static_cast<size_t>(rows * stride)) {}

  Real* row(int64_t i) { return data.data() + i * stride; }
  const Real* row(int64_t i) const { return data.data() + i * stride; }

  std::vector<Real> panels() const {
    return panels_of<Real>(rows, columns, [&](int64_t d, int64_t c) { return row(d)[c]; });
  }
  std::vector<Real> transposed_panels() const {
    return panels_of<Real>(columns, rows, [&](int64_t d, int64_t c) { return row(c)[d]; });
  }
  Matrix transposed() const {
    Matrix result(columns, rows);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) result.row(j)[i] = row(i)[j];
    }
    return result;
  }
  // this = a * b
  void multiply(const Matrix& a, const std::vector<Real>& b) {
    product(a.data.data(), a.stride, b.data(), data.data(), stride, rows, columns, a.columns);
  }
  void add(const Matrix& other) {
    for (size_t n = 0; n < data.size(); ++n) data[n] += other.data[n];
  }
};

template <class Real>
class PlainBackward {
 public:
  explicit PlainBackward(const Definition& definition)
      : d_(definition),
        p_(definition.problem),
        d_bias_(sums(p_.d_bias)),
        d_sink_(sums(p_.d_sink)),
        d_alibi_(sums(p_.d_alibi_slopes)) {}

  void run() {
    for (const Sequence& sequence : d_.sequences) {
      for (int64_t kv_head = 0; kv_head < d_.kv_heads; ++kv_head) run_kv_head(sequence, kv_head);
    }
    write(p_.d_bias, d_.args.d_bias, d_bias_);
    write(p_.d_sink, d_.args.d_sink, d_sink_);
    write(p_.d_alibi_slopes, d_.args.d_alibi_slopes, d_alibi_);
  }

 private:
  static std::vector<Real> sums(const runmax_tensor& tensor) {
    return std::vector<Real>(present(tensor) ? static_cast<size_t>(element_count(tensor)) : 0);
  }

  Matrix<Real> read(const runmax_tensor& tensor, const void* data, const Sequence& s, int64_t start,
                    int64_t head, int64_t tokens, int64_t dim) const {
    Matrix<Real> matrix(tokens, dim);
    if (!present(tensor)) return matrix;
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t at = d_.offset(tensor, s, start, head, i);
      for (int64_t c = 0; c < dim; ++c) {
        matrix.row(i)[c] =
            static_cast<Real>(load(tensor.dtype, data, at + c * tensor.stride[tensor.rank - 1]));
      }
    }
    return matrix;
  }

  void write(const runmax_tensor& tensor, void* data, const std::vector<Real>& values) const {
    for (size_t n = 0; n < values.size(); ++n) {
      store(tensor.dtype, data, element_offset(tensor, static_cast<int64_t>(n)),
            static_cast<double>(values[n]));
    }
  }

  void write(const runmax_tensor& tensor, void* data, const Sequence& s, int64_t start,
             int64_t head, const Matrix<Real>& matrix, Real factor) const {
    if (!present(tensor)) return;
    for (int64_t i = 0; i < matrix.rows; ++i) {
      const int64_t at = d_.offset(tensor, s, start, head, i);
      for (int64_t c = 0; c < matrix.columns; ++c) {
        // + 0, so that a zero times a negative scale is not -0.
        store(tensor.dtype, data, at + c * tensor.stride[tensor.rank - 1],
              static_cast<double>(factor * matrix.row(i)[c]) + 0.0);
      }
    }
  }

  void run_kv_head(const Sequence& s, int64_t kv_head) {
    const Real scale = static_cast<Real>(d_.scale);
    const Matrix<Real> k = read(p_.k, d_.args.k, s, s.kv_start, kv_head, s.kv_len, d_.head_dim);
    const Matrix<Real> v = read(p_.v, d_.args.v, s, s.kv_start, kv_head, s.kv_len, d_.head_dim_v);
    const std::vector<Real> k_panels = k.panels(), k_t = k.transposed_panels(),
                            v_t = v.transposed_panels();
    Matrix<Real> d_k(s.kv_len, d_.head_dim), d_v(s.kv_len, d_.head_dim_v);
    for (int64_t g = 0; g < d_.group_size; ++g) {
      const int64_t head = kv_head * d_.group_size + g;
      const Matrix<Real> q = read(p_.q, d_.args.q, s, s.q_start, head, s.q_len, d_.head_dim);
      const Matrix<Real> d_out =
          read(p_.d_out, d_.args.d_out, s, s.q_start, head, s.q_len, d_.head_dim_v);
      Matrix<Real> probs(s.q_len, s.kv_len), d_scores(s.q_len, s.kv_len);
      probs.multiply(q, k_t);
      d_scores.multiply(d_out, v_t);
      run_rows(s, head, d_out, v.panels(), probs, d_scores);
      Matrix<Real> part_k(s.kv_len, d_.head_dim), part_v(s.kv_len, d_.head_dim_v);
      part_v.multiply(probs.transposed(), d_out.panels());
      part_k.multiply(d_scores.transposed(), q.panels());
      d_v.add(part_v);
      d_k.add(part_k);
      Matrix<Real> d_q(s.q_len, d_.head_dim);
      d_q.multiply(d_scores, k_panels);
      write(p_.d_q, d_.args.d_q, s, s.q_start, head, d_q, scale);
    }
    write(p_.d_k, d_.args.d_k, s, s.kv_start, kv_head, d_k, scale);
    write(p_.d_v, d_.args.d_v, s, s.kv_start, kv_head, d_v, 1);
  }

  // probs: dot products on entry, the weights of d_out on return. d_scores: d_out.v on entry, the
  // gradients of the dot products on return.
  void run_rows(const Sequence& s, int64_t head, const Matrix<Real>& d_out,
                const std::vector<Real>& v_panels, Matrix<Real>& probs, Matrix<Real>& d_scores) {
    Matrix<Real> unrounded(s.q_len, s.kv_len), slopes(s.q_len, s.kv_len);
    std::vector<PlainRow<Real>> softmax;
    std::fill(slopes.data.begin(), slopes.data.end(), Real(1));
    for (int64_t i = 0; i < s.q_len; ++i) {
      const Row row(d_, s, head, i);
      softmax.push_back(plain_softmax(row, probs.row(i), slopes.row(i)));
      std::copy_n(probs.row(i), s.kv_len, unrounded.row(i));
      if (softmax.back().visible == 0) continue;
      for (int64_t key = 0; key < s.kv_len; ++key) {
        const Real keep = static_cast<Real>(row.dropout_factor(key));
        probs.row(i)[key] *= keep;
        d_scores.row(i)[key] *= keep;
      }
      round_weights(probs.row(i), s.kv_len, p_.q.dtype);
    }
    Matrix<Real> out(s.q_len, d_.head_dim_v);
    out.multiply(probs, v_panels);
    for (int64_t i = 0; i < s.q_len; ++i) {
      Real delta = 0;
      for (int64_t c = 0; c < d_.head_dim_v; ++c) {
        const double rounded = round_to(p_.out.dtype, static_cast<double>(out.row(i)[c]));
        delta += d_out.row(i)[c] * static_cast<Real>(rounded);
      }
      run_row(Row(d_, s, head, i), softmax[static_cast<size_t>(i)], delta, unrounded.row(i),
              slopes.row(i), d_scores.row(i));
    }
  }

  // d: d_out.v after dropout on entry, the gradients of the dot products on return.
  void run_row(const Row& row, const PlainRow<Real>& softmax, Real delta, const Real* probs,
               const Real* slope, Real* d) {
    const int64_t kv_len = row.sequence.kv_len;
    Real d_lse = 0;
    if (present(p_.d_lse)) {
      const int64_t number = d_.lse_index(row.sequence, row.head, row.i);
      d_lse =
          static_cast<Real>(load(p_.d_lse.dtype, d_.args.d_lse, element_offset(p_.d_lse, number)));
    }
    const auto head = static_cast<size_t>(row.head);
    if (softmax.visible == 0) {
      std::fill_n(d, kv_len, Real(0));
      if (present(p_.d_sink)) d_sink_[head] += d_lse;
      return;
    }
    if (present(p_.d_sink)) {
      const double log_share = row.sink() - static_cast<double>(softmax.max) - softmax.log_sum;
      d_sink_[head] += static_cast<Real>(std::exp(log_share)) * (d_lse - delta);
    }
    for (int64_t key = 0; key < kv_len; ++key) {
      const Real d_score = probs[key] * (d[key] - delta + d_lse);
      d[key] = slope[key] * d_score;
      if (present(p_.d_bias)) {
        const int64_t at = broadcast_number(p_.bias, row.sequence.batch, row.head, row.i, key);
        d_bias_[static_cast<size_t>(at)] += d_score;
      }
      if (present(p_.d_alibi_slopes)) {
        const int64_t at = d_.slope_number(row.sequence, row.head);
        d_alibi_[static_cast<size_t>(at)] -= d_score * static_cast<Real>(row.distance(key));
      }
    }
    round_weights(d, kv_len, p_.q.dtype);
  }

  const Definition& d_;
  const runmax_problem& p_;
  std::vector<Real> d_bias_, d_sink_, d_alibi_;
};

// Everything of one kv head and one query head at a time.
uint64_t elements(const Definition& d, int64_t panel) {
  int64_t q_len = 0, kv_len = 0;
  for (const Sequence& sequence : d.sequences) {
    q_len = std::max(q_len, sequence.q_len);
    kv_len = std::max(kv_len, sequence.kv_len);
  }
  const int64_t dims = round_up(d.head_dim, panel) + round_up(d.head_dim_v, panel);
  const int64_t pairs = 4 * q_len * round_up(kv_len, panel) + kv_len * round_up(q_len, panel);
  int64_t sums = 0;
  for (const runmax_tensor* t : {&d.problem.d_bias, &d.problem.d_sink, &d.problem.d_alibi_slopes}) {
    if (present(*t)) sums += element_count(*t);
  }
  return static_cast<uint64_t>(pairs + (6 * round_up(kv_len, panel) + 4 * q_len) * dims + sums);
}

void clear(const runmax_tensor& tensor, void* data) {
  if (!present(tensor)) return;
  const int64_t count = element_count(tensor);
  for (int64_t number = 0; number < count; ++number) {
    store(tensor.dtype, data, element_offset(tensor, number), 0);
  }
}

}  // namespace

uint64_t plain_backward_memory(const runmax_problem& problem, const runmax_args& args) {
  const Definition definition(problem, args);
  return problem.q.dtype == RUNMAX_F64 ? elements(definition, kPanel<double>) * sizeof(double)
                                       : elements(definition, kPanel<float>) * sizeof(float);
}

bool plain_backward(const runmax_problem& problem, const runmax_args& args,
                    const PlainOptions& options) {
  if (options.memory_limit != 0 && plain_backward_memory(problem, args) > options.memory_limit) {
    return false;
  }
  const Definition definition(problem, args);
  try {
    if ((problem.flags & RUNMAX_KEEP_UNUSED) == 0) {
      clear(problem.d_q, args.d_q);
      clear(problem.d_k, args.d_k);
      clear(problem.d_v, args.d_v);
    }
    if (problem.q.dtype == RUNMAX_F64) {
      PlainBackward<double>(definition).run();
    } else {
      PlainBackward<float>(definition).run();
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

}  // namespace runmax::reference
