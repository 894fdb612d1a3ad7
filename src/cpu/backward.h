// The generic backward kernel: every gradient of the contract by recomputation, one pass over the
// pairs and five products (FlashAttention-2, section 3.2), in memory linear in the lengths.
//
//   row_terms   per row: d_lse - sum_d d_out out
//   keys        work item = (batch entry, kv head, chunk of keys); for each kv tile of the chunk,
//   for
//               each query head of the group, for each q tile that sees it (backward_tile.h):
//                 d_v  += P^T d_out      d_k += dDot^T q      partial d_q += dDot k
//   queries     per q tile: partial d_q of all chunks, added in order, rounded once
//   bias        work item = a tile of d_bias; recomputes dS for every entry that is summed into it
//   head        d_sink and d_alibi_slopes, sums of one number per row and per chunk
//
// Chunks depend on shapes alone and every sum has a fixed order, so gradients have the same bits
// for any number of threads. As in forward, sums are kept in levels, and where NaN or inf of an
// invisible pair reached a neighbour through 0 * inf the product is done again over visible pairs,
// with the additions of a run that has zeros there.
#pragma once

#include "cpu/backward_tile.h"

namespace runmax::cpu::RUNMAX_CPU_ISA {

// q tiles whose products are one sum before they enter the total.
inline constexpr int64_t kTilesPerLevel = 32;

template <class T>
RUNMAX_INLINE void add_into(T* to, const T* from, int64_t count) {
  for (int64_t n = 0; n < count; n += kLanes<T>) store(to + n, load(to + n) + load(from + n));
}
template <class T>
RUNMAX_INLINE void set_zero(T* to, int64_t count) {
  for (int64_t n = 0; n < count; ++n) to[n] = 0;
}

// --------------------------------------------------------------------------------- row terms

// A row whose denominator is the sink alone: its out is 0 whatever d_out holds.
template <class T>
RUNMAX_INLINE bool only_sink(const BackwardParams& b, const Sequence& s, int64_t head, int64_t row,
                             T lse) {
  const ForwardParams& p = b.forward;
  if (!p.sink.present()) return false;
  if (load_scalar<T>(p.sink.dtype, p.sink.pointer, head * p.sink.head) != lse) return false;
  for (int64_t c = 0; c < p.head_dim_v; ++c) {
    const int64_t at = q_row_offset(p.out, s, head, row) + c * p.out.column;
    if (load_scalar<T>(p.out.dtype, p.out.pointer, at) != T{0}) return false;
  }
  return true;
}

template <class T>
RUNMAX_INLINE void run_row_terms(const BackwardParams& b, int64_t item, std::byte*) {
  using Wide = typename Lanes<T>::Wide;
  const ForwardParams& p = b.forward;
  const WorkItem work = work_item(p, item, 1);
  const Sequence s = sequence_of(p, work.sequence);
  for (int64_t row = work.tile * p.q_tile; row < (work.tile + 1) * p.q_tile && row < s.q_used;
       ++row) {
    Wide term = 0;
    const T lse =
        load_scalar<T>(p.lse.dtype, p.lse.pointer, q_row_offset(p.lse, s, work.head, row));
    if (lse != kMinusInfinity<T>) {  // else an empty row: no gradient passes through it
      if (b.d_lse.present()) {
        term = load_scalar<T>(b.d_lse.dtype, b.d_lse.pointer,
                              q_row_offset(b.d_lse, s, work.head, row));
      }
      if (b.d_out.present() && !only_sink(b, s, work.head, row, lse)) {
        for (int64_t c = 0; c < p.head_dim_v; ++c) {
          const int64_t at = q_row_offset(b.d_out, s, work.head, row) + c * b.d_out.column;
          const int64_t out = q_row_offset(p.out, s, work.head, row) + c * p.out.column;
          term -= static_cast<Wide>(load_scalar<T>(b.d_out.dtype, b.d_out.pointer, at)) *
                  load_scalar<T>(p.out.dtype, p.out.pointer, out);
        }
      }
    }
    const int64_t token = (p.packed ? s.q_start : s.batch * p.q_len) + row;
    static_cast<T*>(b.row_term)[work.head * p.total_q + token] = static_cast<T>(term);
  }
}

// -------------------------------------------------------------------------------------- keys

// Position of a q tile's partial d_q: [head_dim, q_tile].
template <class T>
RUNMAX_INLINE T* d_q_partial(const BackwardParams& b, int64_t chunk, int64_t head, int64_t batch,
                             int64_t tile) {
  const ForwardParams& p = b.forward;
  const int64_t first =
      p.tile_start != nullptr ? p.tile_start[batch] : batch * p.tiles_per_sequence;
  return static_cast<T*>(b.d_q_partial) +
         ((chunk * p.q_heads + head) * b.q_tiles + first + tile) * p.head_dim * p.q_tile;
}

template <class T>
class KeysItem {
 public:
  KeysItem(const BackwardParams& params, int64_t batch, int64_t kv_head_, int64_t chunk_,
           std::byte* scratch)
      : b(params),
        p(params.forward),
        tile(params, batch, scratch),
        kv_head(kv_head_),
        chunk(chunk_),
        q_tiles((tile.s.q_used + p.q_tile - 1) / p.q_tile) {}

  void run() {
    if (b.d_q.present()) clear_d_q();
    for (int64_t g = 0; g < p.group_size && b.d_alibi_slopes.present(); ++g) alibi(g) = 0;
    const int64_t storage = kv_storage();
    const int64_t begin = chunk * b.chunk_len;
    const int64_t end = storage - begin < b.chunk_len ? storage : begin + b.chunk_len;
    for (int64_t key = begin; key < end; key += p.kv_tile) {
      run_tile(key);
      store_keys(b.d_k, tile.x.d_k_total, tile.x.q_stride, p.head_dim, key, storage);
      store_keys(b.d_v, tile.x.d_v_total, tile.x.v_stride, p.head_dim_v, key, storage);
    }
  }

 private:
  // Keys that the sequence has room for, in use or not.
  int64_t kv_storage() const {
    if (!p.packed) return p.kv_len;
    const int64_t stride = p.cu_seqlens_kv_stride;
    return p.cu_seqlens_kv[(tile.s.batch + 1) * stride] - p.cu_seqlens_kv[tile.s.batch * stride];
  }

  double& alibi(int64_t g) const {
    return b
        .alibi_partial[(chunk * p.batch + tile.s.batch) * p.q_heads + kv_head * p.group_size + g];
  }

  void clear_d_q() const {
    for (int64_t g = 0; g < p.group_size; ++g) {
      T* first = d_q_partial<T>(b, chunk, kv_head * p.group_size + g, tile.s.batch, 0);
      set_zero(first, q_tiles * p.head_dim * p.q_tile);
    }
  }

  void run_tile(int64_t key) {
    tile.load_keys(kv_head, key);
    set_zero(tile.x.d_k_total, p.kv_tile * tile.x.q_stride);
    set_zero(tile.x.d_v_total, p.kv_tile * tile.x.v_stride);
    for (int64_t g = 0; g < p.group_size; ++g) {
      const int64_t head = kv_head * p.group_size + g;
      int64_t in_level = 0;
      for (int64_t t = 0; t < q_tiles; ++t) {
        if (!tile.meets(head, t)) continue;
        if (in_level == 0) clear_level();
        tile.load_rows();
        tile.compute();
        add_products(head, t);
        if (b.d_alibi_slopes.present()) alibi(g) += tile.alibi_sum();
        if (++in_level == kTilesPerLevel) {
          add_level();
          in_level = 0;
        }
      }
      if (in_level > 0) add_level();
    }
  }

  void clear_level() {
    set_zero(tile.x.d_k, p.kv_tile * tile.x.q_stride);
    set_zero(tile.x.d_v, p.kv_tile * tile.x.v_stride);
  }
  void add_level() {
    add_into(tile.x.d_k_total, tile.x.d_k, p.kv_tile * tile.x.q_stride);
    add_into(tile.x.d_v_total, tile.x.d_v, p.kv_tile * tile.x.v_stride);
  }

  void add_products(int64_t head, int64_t t) {
    if (b.d_v.present()) {
      product_by_key(tile.x.probs, tile.x.d_out, tile.x.v_stride);
      add_into(tile.x.d_v, tile.x.product, p.kv_tile * tile.x.v_stride);
    }
    if (b.d_k.present()) {
      product_by_key(tile.x.dots, tile.x.q, tile.x.q_stride);
      add_into(tile.x.d_k, tile.x.product, p.kv_tile * tile.x.q_stride);
    }
    if (b.d_q.present()) {
      product_by_query();
      add_into(d_q_partial<T>(b, chunk, head, tile.s.batch, t), tile.x.product,
               p.head_dim * p.q_tile);
    }
  }

  // product [kv_tile, columns] = weights [kv_tile, q_tile] from [q_tile, columns]
  void product_by_key(const T* weights, const T* from, int64_t columns) {
    T* product = tile.x.product;
    tile_product(p.kv_tile, columns, p.q_tile, weights, p.q_tile, from, columns, product, columns);
    if (!tile.masked || !some_not_finite(product, p.kv_tile * columns)) return;
    for (int64_t j = 0; j < p.kv_tile; ++j) {
      for (int64_t c = 0; c < columns; c += kLanes<T>) {
        Vec<T> sum{};
        for (int64_t i = 0; i < p.q_tile; ++i) {
          if (tile.x.visible[j * p.q_tile + i] == 0) continue;
          sum = fma(broadcast(weights[j * p.q_tile + i]), load(from + i * columns + c), sum);
        }
        store(product + j * columns + c, sum);
      }
    }
  }

  // product [head_dim, q_tile] = k^T [head_dim, kv_tile] dDot [kv_tile, q_tile]
  void product_by_query() {
    T* product = tile.x.product;
    tile_product<T, true>(p.head_dim, p.q_tile, p.kv_tile, tile.x.k, tile.x.q_stride, tile.x.dots,
                          p.q_tile, product, p.q_tile);
    if (!tile.masked || !some_not_finite(product, p.head_dim * p.q_tile)) return;
    using Mask = MaskVec<T>;
    typedef int8_t Bytes __attribute__((vector_size(kLanes<T>), aligned(1), may_alias));
    for (int64_t c = 0; c < p.head_dim; ++c) {
      for (int64_t i = 0; i < p.q_tile; i += kLanes<T>) {
        Vec<T> sum{};
        for (int64_t j = 0; j < p.kv_tile; ++j) {
          const int64_t at = j * p.q_tile + i;
          const Mask live =
              __builtin_convertvector(*reinterpret_cast<const Bytes*>(tile.x.visible + at), Mask);
          const Vec<T> k = broadcast(tile.x.k[j * tile.x.q_stride + c]);
          sum = live ? fma(k, load(tile.x.dots + at), sum) : sum;
        }
        store(product + c * p.q_tile + i, sum);
      }
    }
  }

  static bool some_not_finite(const T* from, int64_t count) {
    auto bad = not_finite(load(from));
    for (int64_t n = kLanes<T>; n < count; n += kLanes<T>) bad |= not_finite(load(from + n));
    return any(bad);
  }

  // Writes every key of the tile that has storage; those not in use get zeros, or are left alone.
  void store_keys(const Operand& to, const T* from, int64_t stride, int64_t columns, int64_t key,
                  int64_t storage) {
    if (!to.present()) return;
    for (int64_t j = 0; j < p.kv_tile && key + j < storage; ++j) {
      if (p.keep_unused && key + j >= tile.s.kv_used) return;
      store_row(to.dtype, to.pointer, kv_row_offset(to, tile.s, kv_head, key + j), to.column,
                columns, from + j * stride);
    }
  }

  const BackwardParams& b;
  const ForwardParams& p;
  BackwardTile<T> tile;
  const int64_t kv_head;
  const int64_t chunk;
  const int64_t q_tiles;
};

template <class T>
RUNMAX_INLINE void run_keys(const BackwardParams& b, int64_t item, std::byte* scratch) {
  const ForwardParams& p = b.forward;
  const int64_t kv_heads = p.q_heads / p.group_size;
  const int64_t chunk = item % b.chunks;
  const int64_t kv_head = item / b.chunks % kv_heads;
  KeysItem<T>(b, item / b.chunks / kv_heads, kv_head, chunk, scratch).run();
}

// ----------------------------------------------------------------------------------- queries

template <class T>
RUNMAX_INLINE void run_queries(const BackwardParams& b, int64_t item, std::byte* scratch) {
  const ForwardParams& p = b.forward;
  const WorkItem work = work_item(p, item, 1);
  const Sequence s = sequence_of(p, work.sequence);
  T* line = BackwardTile<T>::scratch_of(b, scratch).line;
  for (int64_t i = 0; i < p.q_tile; ++i) {
    const int64_t row = work.tile * p.q_tile + i;
    if (row >= s.q_len || (p.keep_unused && row >= s.q_used)) return;
    for (int64_t c = 0; c < p.head_dim; ++c) {
      T sum = 0;
      for (int64_t chunk = 0; chunk < b.chunks && row < s.q_used; ++chunk) {
        sum += d_q_partial<T>(b, chunk, work.head, s.batch, work.tile)[c * p.q_tile + i];
      }
      line[c] = sum + T{0};
    }
    store_row(b.d_q.dtype, b.d_q.pointer, q_row_offset(b.d_q, s, work.head, row), b.d_q.column,
              p.head_dim, line);
  }
}

// -------------------------------------------------------------------------------------- bias

// One tile of d_bias: the elements (batch, head, rows of a q tile or all, keys of a kv tile or
// all), where "all" are dimensions of size 1, which sum over what they are broadcast to.
template <class T>
class BiasItem {
 public:
  BiasItem(const BackwardParams& params, int64_t item, std::byte* scratch_)
      : b(params),
        p(params.forward),
        scratch(scratch_),
        x(BackwardTile<T>::scratch_of(b, scratch_)) {
    const int64_t* shape = b.d_bias_shape;
    const int64_t kv_tiles = shape[3] == 1 ? 1 : (shape[3] + p.kv_tile - 1) / p.kv_tile;
    const int64_t row_tiles = shape[2] == 1 ? 1 : (shape[2] + p.q_tile - 1) / p.q_tile;
    kv_tile = item % kv_tiles;
    q_tile = item / kv_tiles % row_tiles;
    head = item / kv_tiles / row_tiles % shape[1];
    batch = item / kv_tiles / row_tiles / shape[1];
  }

  void run() {
    for (int64_t n = 0; n < int64_t{p.kv_tile} * p.q_tile; ++n) x.bias_sum[n] = 0;
    const int64_t* shape = b.d_bias_shape;
    const int64_t last_batch = shape[0] == 1 ? p.batch : batch + 1;
    const int64_t last_head = shape[1] == 1 ? p.q_heads : head + 1;
    for (int64_t i = shape[0] == 1 ? 0 : batch; i < last_batch; ++i) {
      BackwardTile<T> tile(b, i, scratch);
      for (int64_t h = shape[1] == 1 ? 0 : head; h < last_head; ++h) add_head(tile, h);
    }
    write();
  }

 private:
  void add_head(BackwardTile<T>& tile, int64_t h) {
    const bool one_key = b.d_bias_shape[3] != 1;
    const bool one_row = b.d_bias_shape[2] != 1;
    const int64_t kv_end = (tile.s.kv_used + p.kv_tile - 1) / p.kv_tile;
    const int64_t q_end = (tile.s.q_used + p.q_tile - 1) / p.q_tile;
    for (int64_t k = one_key ? kv_tile : 0; k < kv_end && (!one_key || k == kv_tile); ++k) {
      tile.load_keys(h / p.group_size, k * p.kv_tile);
      for (int64_t q = one_row ? q_tile : 0; q < q_end && (!one_row || q == q_tile); ++q) {
        if (!tile.meets(h, q)) continue;
        tile.load_rows();
        tile.compute();
        add_tile(tile, one_row, one_key);
      }
    }
  }

  void add_tile(const BackwardTile<T>& tile, bool one_row, bool one_key) {
    for (int64_t j = 0; j < p.kv_tile; ++j) {
      for (int64_t i = 0; i < p.q_tile; ++i) {
        if (tile.masked && x.visible[j * p.q_tile + i] == 0) continue;
        x.bias_sum[(one_key ? j : 0) * p.q_tile + (one_row ? i : 0)] +=
            static_cast<double>(x.d_scores[j * p.q_tile + i]);
      }
    }
  }

  void write() {
    const int64_t* shape = b.d_bias_shape;
    const Operand& to = b.d_bias;
    for (int64_t i = 0; i < p.q_tile && q_tile * p.q_tile + i < shape[2]; ++i) {
      for (int64_t j = 0; j < p.kv_tile && kv_tile * p.kv_tile + j < shape[3]; ++j) {
        const T value = static_cast<T>(x.bias_sum[j * p.q_tile + i]);
        store_row(to.dtype, to.pointer,
                  batch * to.batch + head * to.head + (q_tile * p.q_tile + i) * to.row +
                      (kv_tile * p.kv_tile + j) * to.column,
                  1, 1, &value);
      }
    }
  }

  const BackwardParams& b;
  const ForwardParams& p;
  std::byte* scratch;
  const BackwardScratch<T> x;
  int64_t kv_tile, q_tile, head, batch;
};

// -------------------------------------------------------------------------------------- heads

template <class T>
RUNMAX_INLINE void run_head(const BackwardParams& b, int64_t head, std::byte*) {
  using Wide = typename Lanes<T>::Wide;
  const ForwardParams& p = b.forward;
  if (b.d_sink.present()) {
    const T sink = load_scalar<T>(p.sink.dtype, p.sink.pointer, head * p.sink.head);
    Wide sum = 0;
    for (int64_t i = 0; i < p.batch && sink != kMinusInfinity<T>; ++i) {
      const Sequence s = sequence_of(p, i);
      const int64_t first = p.packed ? s.q_start : s.batch * p.q_len;
      for (int64_t row = 0; row < s.q_used; ++row) {
        const int64_t at = q_row_offset(p.lse, s, head, row);
        const Wide lse = load_scalar<T>(p.lse.dtype, p.lse.pointer, at);
        const Wide lo = p.lse_lo.present() ? load_scalar<T>(p.lse_lo.dtype, p.lse_lo.pointer,
                                                            q_row_offset(p.lse_lo, s, head, row))
                                           : T{0};
        sum += exp_wide(static_cast<Wide>(sink) - lse - lo) *
               static_cast<const T*>(b.row_term)[head * p.total_q + first + row];
      }
    }
    const T value = static_cast<T>(sum);
    store_row(b.d_sink.dtype, b.d_sink.pointer, head * b.d_sink.head, 1, 1, &value);
  }
  if (!b.d_alibi_slopes.present()) return;
  // [q_heads] sums over the batch, [batch, q_heads] does not.
  double sum = 0;
  for (int64_t i = 0; i < p.batch; ++i) {
    for (int64_t chunk = 0; chunk < b.chunks; ++chunk) {
      sum += b.alibi_partial[(chunk * p.batch + i) * p.q_heads + head];
    }
    if (b.d_alibi_slopes.batch == 0 && i + 1 < p.batch) continue;
    const T value = static_cast<T>(sum);
    store_row(b.d_alibi_slopes.dtype, b.d_alibi_slopes.pointer,
              i * b.d_alibi_slopes.batch + head * b.d_alibi_slopes.head, 1, 1, &value);
    sum = 0;
  }
}

}  // namespace runmax::cpu::RUNMAX_CPU_ISA
