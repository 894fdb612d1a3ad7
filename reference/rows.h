// The problem as its definition sees it: sequences, their rows, and for one row which keys it sees
// and what is added to a score. Forward, backward and the plain computation stand on it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runmax/runmax.h"

namespace runmax::reference {

// One entry of the batch.
struct Sequence {
  int64_t batch = 0;     // which entry
  int64_t q_start = 0;   // packed: token where it starts; dense: 0
  int64_t kv_start = 0;  // likewise
  int64_t q_len = 0;     // rows in use
  int64_t kv_len = 0;    // keys in use
  int64_t diagonal = 0;  // row i is aligned with key i + diagonal
  int64_t prefix_len = 0;
  int64_t first_q_block = 0;  // packed: where its rows of block_index start
};

class Definition {
 public:
  Definition(const runmax_problem& problem, const runmax_args& args);

  const runmax_problem& problem;
  const runmax_args& args;
  bool packed;
  int64_t q_heads, kv_heads, group_size;
  int64_t head_dim, head_dim_v;
  int64_t q_rows;  // rows of a head in storage: q_len, or total_q when packed
  double scale;
  std::vector<Sequence> sequences;

  int64_t rows() const;  // elements of lse
  // Flat index in lse of row i of a sequence.
  int64_t lse_index(const Sequence& sequence, int64_t head, int64_t i) const;
  // Number of the row in out: out's elements are [out_row, head_dim_v].
  int64_t out_row(const Sequence& sequence, int64_t head, int64_t i) const;

  // Element of q, k, v or out: token `i` of a sequence. Offsets go through the strides.
  int64_t offset(const runmax_tensor& tensor, const Sequence& sequence, int64_t start, int64_t head,
                 int64_t i) const;
  // Number of the row in d_k and d_v: their elements are [kv_row, dim].
  int64_t kv_row(const Sequence& sequence, int64_t head, int64_t key) const;
  // Number of a head's element of alibi_slopes.
  int64_t slope_number(const Sequence& sequence, int64_t head) const;
};

// One query row.
class Row {
 public:
  Row(const Definition& definition, const Sequence& sequence, int64_t head, int64_t i);

  const Definition& definition;
  const Sequence& sequence;
  const int64_t head;
  const int64_t i;

  bool sees(int64_t key) const;
  double bias(int64_t key) const;        // 0 when absent
  int64_t distance(int64_t key) const;   // from the diagonal
  long double alibi(int64_t key) const;  // what is added: -slope * distance
  bool has_sink() const { return definition.problem.sink.dtype != RUNMAX_DTYPE_NONE; }
  double sink() const;
  // What dropout multiplies the key's weight by: 0, or 1 / (1 - p).
  double dropout_factor(int64_t key) const;

 private:
  std::vector<bool> selected_;  // blocks of keys, when block_index is given
  double slope_ = 0;
};

// An element of a tensor that broadcasts to [batch, q_heads, q_len, kv_len].
double broadcast_element(const runmax_tensor& tensor, const void* data, int64_t batch, int64_t head,
                         int64_t i, int64_t key);

// The row-major number of that element.
int64_t broadcast_number(const runmax_tensor& tensor, int64_t batch, int64_t head, int64_t i,
                         int64_t key);

// Calls body(index) for every index below `count` from several threads. `work` is a rough number of
// operations of all calls: little of it runs on the caller alone. threads 0 = the machine's.
void parallel(int64_t count, double work, int threads, const std::function<void(int64_t)>& body);

}  // namespace runmax::reference
