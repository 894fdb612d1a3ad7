// One tile of queries against one tile of keys, backward: probabilities and score gradients,
// recomputed from q, k, v, d_out and one number per row.
//
//   S^T  = K Q^T            dP^T = V dO^T            [kv_tile, q_tile], keys are rows
//   P    = exp((S - lse) - lse_lo), 0 where invisible
//   dS   = P (dropout(dP) + d_lse - delta)           gradient of a score
//   dDot = dS * d score / d dot                      gradient of a dot product
//
// The transposed form needs no transpose of P or dS: lse and delta are loaded as vectors, and all
// five products read rows (FlashAttention-2, section 3.2, recomputes the same way).
#pragma once

#include "cpu/backward_params.h"
#include "cpu/forward.h"

namespace runmax::cpu::RUNMAX_CPU_ISA {

template <class T>
struct BackwardScratch {
  T* q;             // [q_tile, q_stride]
  T* q_t;           // [head_dim, q_tile]
  T* d_out;         // [q_tile, v_stride]
  T* d_out_t;       // [head_dim_v, q_tile]
  T* k;             // [kv_tile, q_stride]
  T* v;             // [kv_tile, v_stride]
  T* lse;           // [q_tile]
  T* lse_lo;        // [q_tile]
  T* row_term;      // [q_tile]
  T* dots;          // [kv_tile, q_tile], becomes dDot
  T* probs;         // [kv_tile, q_tile], after dropout: what multiplies d_out
  T* d_scores;      // [kv_tile, q_tile], from dP
  T* bias;          // [kv_tile, q_tile]
  T* line;          // [max(kv_tile, head_dim, head_dim_v)]
  T* distance;      // [q_tile]
  T* keep;          // [kv_tile, q_tile]: 0 or 1 / (1 - dropout)
  int8_t* visible;  // [kv_tile, q_tile], 0 or -1
  T* product;       // [kv_tile, max stride] or [head_dim, q_tile]
  T* d_k;           // [kv_tile, q_stride], this group of q tiles
  T* d_v;           // [kv_tile, v_stride]
  T* d_k_total;
  T* d_v_total;
  double* bias_sum;  // [kv_tile, q_tile]
  int64_t q_stride;
  int64_t v_stride;

  BackwardScratch(const BackwardParams& b, Carver& carver) {
    const ForwardParams& p = b.forward;
    const int64_t pairs = int64_t{p.kv_tile} * p.q_tile;
    q_stride = padded<T>(p.head_dim);
    v_stride = padded<T>(p.head_dim_v);
    const int64_t widest = q_stride > v_stride ? q_stride : v_stride;
    q = carver.take<T>(p.q_tile * q_stride);
    q_t = carver.take<T>(p.head_dim * p.q_tile);
    d_out = carver.take<T>(p.q_tile * v_stride);
    d_out_t = carver.take<T>(p.head_dim_v * p.q_tile);
    k = carver.take<T>(p.kv_tile * q_stride);
    v = carver.take<T>(p.kv_tile * v_stride);
    lse = carver.take<T>(p.q_tile);
    lse_lo = carver.take<T>(p.q_tile);
    row_term = carver.take<T>(p.q_tile);
    dots = carver.take<T>(pairs);
    probs = carver.take<T>(pairs);
    d_scores = carver.take<T>(pairs);
    bias = carver.take<T>(pairs);
    line = carver.take<T>(widest > p.kv_tile ? widest : p.kv_tile);
    distance = carver.take<T>(p.q_tile);
    keep = carver.take<T>(p.dropout.active ? pairs : 0);
    visible = carver.take<int8_t>(pairs);
    const int64_t by_key = p.kv_tile * widest;
    const int64_t by_query = p.head_dim * p.q_tile;
    product = carver.take<T>(by_key > by_query ? by_key : by_query);
    d_k = carver.take<T>(p.kv_tile * q_stride);
    d_v = carver.take<T>(p.kv_tile * v_stride);
    d_k_total = carver.take<T>(p.kv_tile * q_stride);
    d_v_total = carver.take<T>(p.kv_tile * v_stride);
    bias_sum = carver.take<double>(b.d_bias.present() ? pairs : 0);
  }
};

template <class T>
class BackwardTile {
 public:
  using Wide = typename Lanes<T>::Wide;

  BackwardTile(const BackwardParams& params, int64_t batch, std::byte* scratch)
      : BackwardTile(params, batch, Carver(scratch)) {}

  // Keys [key_begin, key_begin + kv_tile) of one kv head; those past the used ones are zeros.
  void load_keys(int64_t kv_head, int64_t begin) {
    key_begin = begin;
    keys = s.kv_used - begin < p.kv_tile ? s.kv_used - begin : p.kv_tile;
    for (int64_t j = 0; j < p.kv_tile; ++j) {
      const bool used = j < keys;
      load_padded(p.k, kv_row_offset(p.k, s, kv_head, begin + j), used, p.head_dim,
                  x.k + j * x.q_stride, x.q_stride);
      load_padded(p.v, kv_row_offset(p.v, s, kv_head, begin + j), used, p.head_dim_v,
                  x.v + j * x.v_stride, x.v_stride);
    }
  }

  // Do the rows of q tile `tile` see any of the keys? Then they can be loaded.
  bool meets(int64_t query_head, int64_t tile) {
    head = query_head;
    row_begin = tile * p.q_tile;
    rows = s.q_used - row_begin < p.q_tile ? s.q_used - row_begin : p.q_tile;
    if (rows <= 0 || keys <= 0) return false;
    tile_class = visibility.classify(row_begin, row_begin + rows, key_begin, key_begin + p.kv_tile);
    return tile_class != policy::TileClass::skip && (!p.blocks.active() || some_block_selected());
  }

  void load_rows() {
    data_mask = data_mask_of(p, s, head);
    score.has_alibi = p.alibi_slopes.present();
    if (score.has_alibi) {
      score.alibi_slope =
          load_scalar<T>(p.alibi_slopes.dtype, p.alibi_slopes.pointer,
                         s.batch * p.alibi_slopes.batch + head * p.alibi_slopes.head);
    }
    for (int64_t i = 0; i < p.q_tile; ++i) {
      const bool used = i < rows;
      const int64_t row = row_begin + i;
      load_padded(p.q, q_row_offset(p.q, s, head, row), used, p.head_dim, x.q + i * x.q_stride,
                  x.q_stride);
      load_padded(b.d_out, q_row_offset(b.d_out, s, head, row), used && b.d_out.present(),
                  p.head_dim_v, x.d_out + i * x.v_stride, x.v_stride);
      x.lse[i] = used
                     ? load_scalar<T>(p.lse.dtype, p.lse.pointer, q_row_offset(p.lse, s, head, row))
                     : T{0};
      x.lse_lo[i] = used && p.lse_lo.present()
                        ? load_scalar<T>(p.lse_lo.dtype, p.lse_lo.pointer,
                                         q_row_offset(p.lse_lo, s, head, row))
                        : T{0};
      x.row_term[i] = used ? row_term(head, row) : T{0};
    }
    transpose(x.q, x.q_stride, p.head_dim, x.q_t);
    transpose(x.d_out, x.v_stride, p.head_dim_v, x.d_out_t);
  }

  // Fills probs, d_scores and dots (as dDot) for the loaded rows and keys.
  void compute() {
    tile_product(p.kv_tile, p.q_tile, p.head_dim, x.k, x.q_stride, x.q_t, p.q_tile, x.dots,
                 p.q_tile);
    tile_product(p.kv_tile, p.q_tile, p.head_dim_v, x.v, x.v_stride, x.d_out_t, p.q_tile,
                 x.d_scores, p.q_tile);
    masked = tile_class != policy::TileClass::full || rows < p.q_tile || data_mask.active() ||
             score.has_bias || p.blocks.active();
    if (score.has_bias) load_bias();
    if (masked) mark_visible();
    if (dropout.active) draw();
    for (int64_t j = 0; j < p.kv_tile; ++j) compute_key(j);
  }

  // Sum of dS * d(score) / d(slope) over the tile.
  double alibi_sum() {
    double sum = 0;
    for (int64_t j = 0; j < p.kv_tile; ++j) {
      load_distance(j);
      Vec<T> line{};
      for (int64_t i = 0; i < p.q_tile; i += kLanes<T>) {
        line -= load(x.d_scores + j * p.q_tile + i) * load(x.distance + i);
      }
      sum += static_cast<double>(reduce_add<T>(line));
    }
    return sum;
  }

  static BackwardScratch<T> scratch_of(const BackwardParams& b, std::byte* base) {
    Carver carver(base);
    return BackwardScratch<T>(b, carver);
  }

 private:
  BackwardTile(const BackwardParams& params, int64_t batch, Carver carver)
      : b(params),
        p(params.forward),
        s(sequence_of(params.forward, batch)),
        visibility(visibility_of(params.forward, s)),
        x(params, carver),
        dropout(dropout_of(params.forward)) {
    score.scale = static_cast<T>(p.scale);
    score.softcap = static_cast<T>(p.softcap);
    score.has_softcap = p.softcap > 0;
    score.has_bias = p.bias.present();
  }

  static void load_padded(const Operand& from, int64_t offset, bool used, int64_t columns, T* to,
                          int64_t stride) {
    if (used) load_row(from.dtype, from.pointer, offset, from.column, columns, to);
    for (int64_t c = used ? columns : 0; c < stride; ++c) to[c] = 0;
  }

  void transpose(const T* from, int64_t stride, int64_t columns, T* to) const {
    for (int64_t i = 0; i < p.q_tile; ++i) {
      for (int64_t c = 0; c < columns; ++c) to[c * p.q_tile + i] = from[i * stride + c];
    }
  }

  T row_term(int64_t query_head, int64_t row) const {
    const int64_t token = (p.packed ? s.q_start : s.batch * p.q_len) + row;
    return static_cast<const T*>(b.row_term)[query_head * p.total_q + token];
  }

  // One key against all rows.
  void compute_key(int64_t j) {
    using Mask = MaskVec<T>;
    typedef int8_t Bytes __attribute__((vector_size(kLanes<T>), aligned(1), may_alias));
    const int64_t at = j * p.q_tile;
    if (score.has_alibi) load_distance(j);
    Mask bad{};
    for (int64_t i = 0; i < p.q_tile; i += kLanes<T>) {
      const Vec<T> dot = load(x.dots + at + i);
      const Vec<T> s_ji = score.forward(dot, load(x.distance + i), load(x.bias + at + i));
      Mask live = Mask{} - 1;
      if (masked) {
        live = __builtin_convertvector(*reinterpret_cast<const Bytes*>(x.visible + at + i), Mask);
      }
      bad |= not_finite(dot) & live;
      const Vec<T> y = (s_ji - load(x.lse + i)) - load(x.lse_lo + i);
      finish_pairs(at + i, i, dot, live ? exp_of(y) : Vec<T>{}, live);
    }
    if (any(bad)) wide_pairs(j);
  }

  // From probabilities to gradients, one vector of rows. Invisible pairs get exact zeros.
  void finish_pairs(int64_t at, int64_t i, Vec<T> dot, Vec<T> prob, MaskVec<T> live) {
    Vec<T> d_prob = load(x.d_scores + at);
    Vec<T> dropped = prob;
    if (dropout.active) {
      const Vec<T> keep = load(x.keep + at);
      d_prob = d_prob * keep;
      dropped = prob * keep;
    }
    const Vec<T> d_score = prob * (d_prob + load(x.row_term + i));
    store(x.probs + at, live ? dropped : Vec<T>{});
    store(x.d_scores + at, live ? d_score : Vec<T>{});
    store(x.dots + at, live ? score.backward(dot, d_score) : Vec<T>{});
  }

  // exp for scores that rounding may have lifted a little above lse; NaN where they cannot belong
  // together.
  static RUNMAX_INLINE Vec<T> exp_of(Vec<T> y) {
    const Vec<T> e = exp_nonpositive(y);
    return y < T{80} ? e : broadcast(static_cast<T>(__builtin_nanf("")));
  }

  // Visible pairs of key j whose dot product overflowed, in the wider type.
  void wide_pairs(int64_t j) {
    const policy::Score<Wide> wide = score.template as<Wide>();
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = j * p.q_tile + i;
      if (masked && x.visible[at] == 0) continue;
      Wide dot = 0;
      Wide d_prob = 0;
      for (int64_t c = 0; c < p.head_dim; ++c) {
        dot += static_cast<Wide>(x.k[j * x.q_stride + c]) * x.q[i * x.q_stride + c];
      }
      for (int64_t c = 0; c < p.head_dim_v; ++c) {
        d_prob += static_cast<Wide>(x.v[j * x.v_stride + c]) * x.d_out[i * x.v_stride + c];
      }
      const Wide s_ji =
          wide.forward(dot, static_cast<Wide>(x.distance[i]), static_cast<Wide>(x.bias[at]));
      const Wide prob = exp_wide(s_ji - x.lse[i] - x.lse_lo[i]);
      const Wide keep = dropout.active ? static_cast<Wide>(x.keep[at]) : Wide{1};
      const Wide d_score = prob * (d_prob * keep + x.row_term[i]);
      x.probs[at] = static_cast<T>(prob * keep);
      x.d_scores[at] = static_cast<T>(d_score);
      x.dots[at] = static_cast<T>(wide.backward(dot, d_score));
    }
  }

  void mark_visible() {
    for (int64_t i = 0; i < p.q_tile; ++i) {
      const int64_t row = row_begin + i;
      int64_t selected = -1;  // last key block whose selection is known
      bool in_block = true;
      for (int64_t j = 0; j < p.kv_tile; ++j) {
        const int64_t key = key_begin + j;
        bool see = i < rows && j < keys && visibility.keep(row, key) && data_mask.keep(row, key);
        if (see && score.has_bias) see = x.bias[j * p.q_tile + i] != kMinusInfinity<T>;
        if (see && p.blocks.active()) {
          if (key / p.blocks.block_kv != selected) {
            selected = key / p.blocks.block_kv;
            in_block = block_selected(row / p.blocks.block_q, selected, selected);
          }
          see = in_block;
        }
        x.visible[j * p.q_tile + i] = see ? -1 : 0;
      }
    }
  }

  // Does block `q_block` of rows select one of key blocks [first, last]? Lists are sorted.
  bool block_selected(int64_t q_block, int64_t first, int64_t last) const {
    const int64_t list = p.blocks.list(s.batch, head, q_block);
    const int32_t* entries = p.blocks.entries + list * p.blocks.max_selected;
    int64_t low = 0;
    int64_t high = p.blocks.counts[list];
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (entries[middle] < first) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low < p.blocks.counts[list] && entries[low] <= last;
  }

  bool some_block_selected() const {
    const int64_t first = key_begin / p.blocks.block_kv;
    const int64_t last = (key_begin + keys - 1) / p.blocks.block_kv;
    for (int64_t q_block = row_begin / p.blocks.block_q;
         q_block <= (row_begin + rows - 1) / p.blocks.block_q; ++q_block) {
      if (block_selected(q_block, first, last)) return true;
    }
    return false;
  }

  // Philox words by quads of keys, as forward draws them.
  void draw() {
    const uint32_t batch_head = static_cast<uint32_t>(s.batch * p.q_heads + head);
    const T keep_scale = static_cast<T>(dropout.keep_scale);
    for (int64_t j = 0; j < p.kv_tile; j += 4) {
      for (int64_t i = 0; i < p.q_tile; ++i) {
        const PhiloxBlock block = dropout.words(batch_head, static_cast<uint32_t>(row_begin + i),
                                                static_cast<uint32_t>((key_begin + j) / 4));
        for (int64_t n = 0; n < 4; ++n) {
          x.keep[(j + n) * p.q_tile + i] = dropout.keep(block.word[n]) ? keep_scale : T{0};
        }
      }
    }
  }

  void load_bias() {
    for (int64_t i = 0; i < rows; ++i) {
      load_row(p.bias.dtype, p.bias.pointer,
               s.batch * p.bias.batch + head * p.bias.head + (row_begin + i) * p.bias.row +
                   key_begin * p.bias.column,
               p.bias.column, keys, x.line);
      for (int64_t j = 0; j < keys; ++j) x.bias[j * p.q_tile + i] = x.line[j];
    }
  }

  void load_distance(int64_t j) {
    for (int64_t i = 0; i < p.q_tile; ++i) {
      const int64_t distance = row_begin + i + s.offset - key_begin - j;
      x.distance[i] = static_cast<T>(distance < 0 ? -distance : distance);
    }
  }

 public:
  const BackwardParams& b;
  const ForwardParams& p;
  const Sequence s;
  const policy::Visibility<int64_t> visibility;
  const BackwardScratch<T> x;
  const policy::Dropout dropout;

  int64_t key_begin = 0;
  int64_t keys = 0;  // in use
  int64_t head = 0;
  int64_t row_begin = 0;
  int64_t rows = 0;  // in use
  policy::TileClass tile_class = policy::TileClass::skip;
  bool masked = false;
  policy::DataMask data_mask{};
  policy::Score<T> score{};
};

}  // namespace runmax::cpu::RUNMAX_CPU_ISA
