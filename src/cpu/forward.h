// The generic forward kernel: every dtype, head dim, stride and mask of the contract, tile by tile.
//
//   work item = (sequence, query head, q tile [, kv split])
//   for each kv tile that some row sees:
//     scores   S = Q K^T         [q_tile, kv_tile]   never leaves the scratch of this thread
//     policy   scale, softcap, bias, ALiBi, then invisible pairs to -inf by select
//     softmax  running maximum and sum, S becomes P; the sums so far are rescaled by alpha
//     product  O = alpha O + P V
//   at the end O / sum and lse = max + log(sum)
//
// Sums are kept in levels: a tile's product starts at zero and is added once; a chunk of keys
// (ForwardParams::chunk, anchored at key 0) is reduced on its own and merged into the total. That
// is more exact than one long chain, and makes a row's bits independent of how chunks are spread
// over work items. Tiles stay in L2. Not tuned: one text for every ISA, arithmetic in float or
// double.
//
// Non-finite data (docs/numerics.md): keys that no row of the tile sees are zeroed before the
// product; pairs that are invisible are removed by select; where a NaN or inf of V still reached a
// neighbour through 0 * inf, the row's product is done again over its visible keys alone. A dot
// product that overflowed on the way to a representable score is done again in the wider type.
#pragma once

#include "cpu/forward_params.h"
#include "cpu/softmax.h"
#include "cpu/storage.h"
#include "cpu/tile_product.h"

namespace runmax::cpu::RUNMAX_CPU_ISA {

// Columns of V rounded up to whole vectors of the widest ISA, so that one layout serves all.
template <class T>
constexpr int64_t padded(int64_t columns) {
  constexpr int64_t kMultiple = 64 / static_cast<int64_t>(sizeof(T));
  return (columns + kMultiple - 1) / kMultiple * kMultiple;
}

// Hands out parts of the scratch; with a null base it measures.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(int64_t count) {
    T* part = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) & ~size_t{63};
    return part;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

template <class T>
struct Scratch {
  T* q;                 // [q_tile, head_dim]
  T* k;                 // [head_dim, kv_tile], transposed
  T* k_row;             // [head_dim]
  T* v;                 // [kv_tile, v_stride]
  T* scores;            // [q_tile, kv_tile]
  T* product;           // [q_tile, v_stride]
  T* alpha;             // [q_tile]
  T* bias;              // [kv_tile]
  T* distance;          // [kv_tile]
  int8_t* visible;      // [q_tile, kv_tile], 0 or -1
  int32_t* cursor;      // [q_tile] into the block list of each block of rows
  int8_t* key_visible;  // [kv_tile]
  RowStates<T> chunk;
  RowStates<T> total;
  int64_t v_stride;

  Scratch(const ForwardParams& p, Carver& carver) {
    v_stride = padded<T>(p.head_dim_v);
    q = carver.take<T>(p.q_tile * p.head_dim);
    k = carver.take<T>(p.head_dim * p.kv_tile);
    k_row = carver.take<T>(p.head_dim);
    v = carver.take<T>(p.kv_tile * v_stride);
    scores = carver.take<T>(int64_t{p.q_tile} * p.kv_tile);
    product = carver.take<T>(p.q_tile * v_stride);
    alpha = carver.take<T>(p.q_tile);
    bias = carver.take<T>(p.kv_tile);
    distance = carver.take<T>(p.kv_tile);
    visible = carver.take<int8_t>(int64_t{p.q_tile} * p.kv_tile);
    key_visible = carver.take<int8_t>(p.kv_tile);
    cursor = carver.take<int32_t>(p.q_tile);
    chunk = take_states(p, carver);
    total = take_states(p, carver);
  }

 private:
  RowStates<T> take_states(const ForwardParams& p, Carver& carver) const {
    RowStates<T> states;
    states.acc = carver.take<T>(p.q_tile * v_stride);
    states.max = carver.take<T>(p.q_tile);
    states.sum = carver.take<T>(p.q_tile);
    states.seen = carver.take<T>(p.q_tile);
    states.stride = v_stride;
    return states;
  }
};

// Partial state of one row in the workspace: acc [v_stride], max, sum, seen.
template <class T>
RUNMAX_INLINE T* partial_row(const ForwardParams& p, const Sequence& s, int64_t head, int64_t row,
                             int64_t split, int64_t v_stride) {
  const int64_t rows = p.packed ? p.total_q : p.batch * p.q_len;
  const int64_t token = p.packed ? s.q_start + row : s.batch * p.q_len + row;
  return static_cast<T*>(p.partial) +
         ((split * p.q_heads + head) * rows + token) * (v_stride + kPartialExtra);
}

template <class T>
class ForwardItem {
 public:
  using Wide = typename Lanes<T>::Wide;

  ForwardItem(const ForwardParams& params, const WorkItem& item, std::byte* scratch)
      : ForwardItem(params, item, Carver(scratch)) {}

  // Attention of this item's rows over keys [kv_begin, kv_end), into the total states.
  void attend(int64_t kv_begin, int64_t kv_end) {
    x.total.init(rows);
    if (rows == 0) return;
    load_q();
    for (int64_t i = 0; p.blocks.active() && i < p.q_tile; ++i) x.cursor[i] = 0;
    const auto range = visibility.tiles(row_begin, row_begin + rows, int64_t{p.kv_tile});
    int64_t current_chunk = -1;
    visit(0, range.leading_end, kv_begin, kv_end, current_chunk);
    visit(range.begin, range.end, kv_begin, kv_end, current_chunk);
    if (current_chunk >= 0) merge_chunk();
  }

  void store_partial(int64_t split) {
    for (int64_t i = 0; i < rows; ++i) {
      T* to = partial_row<T>(p, s, head, row_begin + i, split, x.v_stride);
      for (int64_t d = 0; d < x.v_stride; ++d) to[d] = x.total.acc[i * x.v_stride + d];
      to[x.v_stride] = x.total.max[i];
      to[x.v_stride + 1] = x.total.sum[i];
      to[x.v_stride + 2] = x.total.seen[i];
    }
  }

  void merge_partials() {
    x.total.init(rows);
    for (int32_t split = 0; split < p.num_splits; ++split) {
      for (int64_t i = 0; i < rows; ++i) {
        const T* from = partial_row<T>(p, s, head, row_begin + i, split, x.v_stride);
        const T* extra = from + x.v_stride;
        merge_row(x.total, i, from, extra[0], extra[1], extra[2], x.v_stride);
      }
    }
  }

  // Normalises and writes every row of the tile, those not in use included.
  void finish() {
    const bool has_sink = p.sink.present();
    const T sink =
        has_sink ? load_scalar<T>(p.sink.dtype, p.sink.pointer, head * p.sink.head) : T{0};
    for (int64_t i = 0; i < storage_rows; ++i) {
      T* acc = x.total.acc + i * x.v_stride;
      Finished<T> row{};
      if (i < rows) {
        row = finish_row(x.total.max[i], x.total.sum[i], x.total.seen[i], has_sink, sink,
                         static_cast<Wide>(p.dropout.keep_scale));
        // Adding 0 turns -0, which an underflow can leave, into the +0 of every other path.
        for (int64_t d = 0; d < p.head_dim_v; ++d) acc[d] = acc[d] * row.out_scale + T{0};
      } else {
        if (p.keep_unused) return;
        for (int64_t d = 0; d < p.head_dim_v; ++d) acc[d] = 0;
        row.lse = kMinusInfinity<T>;
      }
      const int64_t at = row_begin + i;
      store_row(p.out.dtype, p.out.pointer, q_row_offset(p.out, s, head, at), p.out.column,
                p.head_dim_v, acc);
      if (p.lse.present()) {
        store_row(p.lse.dtype, p.lse.pointer, q_row_offset(p.lse, s, head, at), 1, 1, &row.lse);
      }
      if (p.lse_lo.present()) {
        store_row(p.lse_lo.dtype, p.lse_lo.pointer, q_row_offset(p.lse_lo, s, head, at), 1, 1,
                  &row.lse_lo);
      }
    }
  }

 private:
  ForwardItem(const ForwardParams& params, const WorkItem& item, Carver carver)
      : p(params),
        s(sequence_of(params, item.sequence)),
        head(item.head),
        kv_head(item.head / params.group_size),
        row_begin(item.tile * params.q_tile),
        visibility(policy::visibility_of(params, s)),
        data_mask(data_mask_of(params, s, item.head)),
        x(params, carver) {
    storage_rows = s.q_len - row_begin < p.q_tile ? s.q_len - row_begin : p.q_tile;
    rows = s.q_used - row_begin < storage_rows ? s.q_used - row_begin : storage_rows;
    if (rows < 0) rows = 0;
    score.scale = p.scale;
    score.softcap = p.softcap;
    score.has_softcap = p.softcap > 0;
    score.has_bias = p.bias.present();
    score.has_alibi = p.alibi_slopes.present();
    score.alibi_slope =
        score.has_alibi && rows > 0
            ? load_scalar<T>(p.alibi_slopes.dtype, p.alibi_slopes.pointer,
                             s.batch * p.alibi_slopes.batch + head * p.alibi_slopes.head)
            : T{0};
  }

  void visit(int64_t tile_begin, int64_t tile_end, int64_t kv_begin, int64_t kv_end,
             int64_t& current_chunk) {
    if (tile_begin < kv_begin / p.kv_tile) tile_begin = kv_begin / p.kv_tile;
    for (int64_t tile = tile_begin; tile < tile_end && tile * p.kv_tile < kv_end; ++tile) {
      const int64_t key_begin = tile * p.kv_tile;
      const policy::TileClass tile_class =
          visibility.classify(row_begin, row_begin + rows, key_begin, key_begin + p.kv_tile);
      if (tile_class == policy::TileClass::skip) continue;
      if (p.blocks.active() && !selected_by_some_row(key_begin)) continue;
      if (key_begin / p.chunk != current_chunk) {
        if (current_chunk >= 0) merge_chunk();
        current_chunk = key_begin / p.chunk;
        x.chunk.init(rows);
      }
      attend_tile(key_begin, tile_class == policy::TileClass::full);
    }
  }

  void merge_chunk() {
    for (int64_t i = 0; i < rows; ++i) {
      merge_row(x.total, i, x.chunk.acc + i * x.v_stride, x.chunk.max[i], x.chunk.sum[i],
                x.chunk.seen[i], x.v_stride);
    }
  }

  void attend_tile(int64_t key_begin, bool all_visible) {
    const int64_t keys = s.kv_used - key_begin < p.kv_tile ? s.kv_used - key_begin : p.kv_tile;
    load_k(key_begin, keys);
    tile_product(rows, p.kv_tile, p.head_dim, x.q, p.head_dim, x.k, p.kv_tile, x.scores, p.kv_tile);
    const bool selected = !p.blocks.active() || mark_selected(key_begin, keys);
    const bool masked = !all_visible || !selected || data_mask.active() || score.has_bias;
    if (masked) {
      for (int64_t j = 0; j < p.kv_tile; ++j) x.key_visible[j] = 0;
    }
    for (int64_t i = 0; i < rows; ++i) {
      T* scores = x.scores + i * p.kv_tile;
      int8_t* visible = x.visible + i * p.kv_tile;
      if (score.has_bias) load_bias(row_begin + i, key_begin, keys);
      if (score.has_alibi) load_distance(row_begin + i, key_begin);
      const bool seen = !masked || mark_visible(row_begin + i, key_begin, keys, visible);
      if (!seen) {  // the state must not change, not even the sign of a zero
        for (int64_t j = 0; j < p.kv_tile; ++j) scores[j] = 0;
        x.alpha[i] = 1;
        continue;
      }
      apply_policy(i, scores, masked ? visible : nullptr);
      x.chunk.seen[i] = 1;
      x.alpha[i] = update_row(scores, p.kv_tile, x.chunk.max[i], x.chunk.sum[i]);
      if (p.dropout.active) drop(row_begin + i, key_begin, scores);
    }
    load_v(key_begin, keys, masked);
    tile_product(rows, x.v_stride, p.kv_tile, x.scores, p.kv_tile, x.v, x.v_stride, x.product,
                 x.v_stride);
    for (int64_t i = 0; i < rows; ++i) accumulate(i, masked);
  }

  // O = alpha O + product.
  void accumulate(int64_t i, bool masked) {
    T* product = x.product + i * x.v_stride;
    if (masked) {
      auto bad = not_finite(load(product));
      for (int64_t d = kLanes<T>; d < x.v_stride; d += kLanes<T>)
        bad |= not_finite(load(product + d));
      if (any(bad)) product_of_visible(i, product);
    }
    T* acc = x.chunk.acc + i * x.v_stride;
    const Vec<T> alpha = broadcast(x.alpha[i]);
    for (int64_t d = 0; d < x.v_stride; d += kLanes<T>) {
      store(acc + d, fma(load(acc + d), alpha, load(product + d)));
    }
  }

  // The slow path for data with NaN or inf: 0 * inf of an invisible pair must not count. The
  // additions are those of tile_product, so a clean row has the bits of a run without such data.
  void product_of_visible(int64_t i, T* product) {
    for (int64_t d = 0; d < x.v_stride; ++d) product[d] = 0;
    for (int64_t j = 0; j < p.kv_tile; ++j) {
      if (x.visible[i * p.kv_tile + j] == 0) continue;
      const Vec<T> weight = broadcast(x.scores[i * p.kv_tile + j]);
      for (int64_t d = 0; d < x.v_stride; d += kLanes<T>) {
        store(product + d, fma(weight, load(x.v + j * x.v_stride + d), load(product + d)));
      }
    }
  }

  // Does some block of rows select a block that reaches into this tile? Tiles come in rising order,
  // so each list is walked once.
  bool selected_by_some_row(int64_t key_begin) {
    const int64_t first_block = row_begin / p.blocks.block_q;
    const int64_t last_block = (row_begin + rows - 1) / p.blocks.block_q;
    bool some = false;
    for (int64_t block = first_block; block <= last_block; ++block) {
      const int64_t list = p.blocks.list(s.batch, head, block);
      const int32_t* entries = p.blocks.entries + list * p.blocks.max_selected;
      int32_t& cursor = x.cursor[block - first_block];
      while (cursor < p.blocks.counts[list] &&
             (entries[cursor] + int64_t{1}) * p.blocks.block_kv <= key_begin) {
        ++cursor;
      }
      some |= cursor < p.blocks.counts[list] &&
              entries[cursor] * p.blocks.block_kv < key_begin + p.kv_tile;
    }
    return some;
  }

  // Starts the visible rows from the selected keys of this tile; true if that is all of them.
  bool mark_selected(int64_t key_begin, int64_t keys) {
    const int64_t first_block = row_begin / p.blocks.block_q;
    int64_t current = -1;
    bool all = true;
    for (int64_t i = 0; i < rows; ++i) {
      int8_t* visible = x.visible + i * p.kv_tile;
      const int64_t block = (row_begin + i) / p.blocks.block_q;
      if (block == current) {  // the same list as the row before
        for (int64_t j = 0; j < p.kv_tile; ++j) visible[j] = visible[j - p.kv_tile];
        continue;
      }
      current = block;
      for (int64_t j = 0; j < p.kv_tile; ++j) visible[j] = 0;
      const int64_t list = p.blocks.list(s.batch, head, block);
      const int32_t* entries = p.blocks.entries + list * p.blocks.max_selected;
      int64_t count = 0;
      for (int64_t e = x.cursor[block - first_block]; e < p.blocks.counts[list]; ++e) {
        int64_t begin = entries[e] * p.blocks.block_kv - key_begin;
        int64_t end = begin + p.blocks.block_kv;
        if (begin >= keys) break;
        if (begin < 0) begin = 0;
        if (end > keys) end = keys;
        for (int64_t j = begin; j < end; ++j) visible[j] = -1;
        count += end - begin;
      }
      all &= count == keys;
    }
    return all;
  }

  // Which keys row q sees; false if none.
  bool mark_visible(int64_t q, int64_t key_begin, int64_t keys, int8_t* visible) {
    const int64_t lo = visibility.lo(q) - key_begin;
    const int64_t hi = visibility.hi(q) - key_begin;
    const int64_t leading = visibility.sink_tokens - key_begin;
    bool seen = false;
    for (int64_t j = 0; j < p.kv_tile; ++j) {
      const int8_t selected = p.blocks.active() ? visible[j] : int8_t{-1};
      visible[j] = j < keys && j < hi && (j >= lo || j < leading) ? selected : int8_t{0};
    }
    if (data_mask.active()) {
      for (int64_t j = 0; j < keys; ++j) {
        if (visible[j] != 0 && !data_mask.keep(q, key_begin + j)) visible[j] = 0;
      }
    }
    if (score.has_bias) {
      for (int64_t j = 0; j < keys; ++j) {
        if (x.bias[j] == kMinusInfinity<T>) visible[j] = 0;
      }
    }
    for (int64_t j = 0; j < p.kv_tile; ++j) {
      x.key_visible[j] |= visible[j];
      seen |= visible[j] != 0;
    }
    return seen;
  }

  // Dot products become scores; invisible ones (visible == nullptr: there are none) become -inf.
  void apply_policy(int64_t i, T* scores, const int8_t* visible) {
    using Mask = MaskVec<T>;
    typedef int8_t Bytes __attribute__((vector_size(kLanes<T>), aligned(1), may_alias));
    Mask bad{};
    for (int64_t j = 0; j < p.kv_tile; j += kLanes<T>) {
      const Vec<T> dot = load(scores + j);
      Vec<T> score_j = score.forward(dot, load(x.distance + j), load(x.bias + j));
      Mask live = Mask{} - 1;
      if (visible != nullptr) {
        live = __builtin_convertvector(*reinterpret_cast<const Bytes*>(visible + j), Mask);
        score_j = live ? score_j : broadcast(kMinusInfinity<T>);
      }
      bad |= not_finite(dot) & live;
      store(scores + j, score_j);
    }
    if (any(bad)) wide_scores(i, scores, visible);
  }

  // |scale| sum |q k| may be in range where sum |q k| is not.
  void wide_scores(int64_t i, T* scores, const int8_t* visible) {
    const policy::Score<Wide> wide = score.template as<Wide>();
    for (int64_t j = 0; j < p.kv_tile; ++j) {
      if (visible != nullptr && visible[j] == 0) continue;
      Wide dot = 0;
      for (int64_t d = 0; d < p.head_dim; ++d) {
        dot += static_cast<Wide>(x.q[i * p.head_dim + d]) * x.k[d * p.kv_tile + j];
      }
      scores[j] = static_cast<T>(
          wide.forward(dot, static_cast<Wide>(x.distance[j]), static_cast<Wide>(x.bias[j])));
    }
  }

  // What is kept is scaled up at the end: here 1 / (1 - p) could leave the range of T.
  void drop(int64_t q, int64_t key_begin, T* weights) {
    const uint32_t batch_head = static_cast<uint32_t>(s.batch * p.q_heads + head);
    for (int64_t j = 0; j < p.kv_tile; j += 4) {
      const PhiloxBlock block = p.dropout.words(batch_head, static_cast<uint32_t>(q),
                                                static_cast<uint32_t>((key_begin + j) / 4));
      for (int64_t n = 0; n < 4; ++n) {
        if (!p.dropout.keep(block.word[n])) weights[j + n] = 0;
      }
    }
  }

  void load_q() {
    for (int64_t i = 0; i < rows; ++i) {
      load_row(p.q.dtype, p.q.pointer, q_row_offset(p.q, s, head, row_begin + i), p.q.column,
               p.head_dim, x.q + i * p.head_dim);
    }
  }

  void load_k(int64_t key_begin, int64_t keys) {
    for (int64_t j = 0; j < keys; ++j) {
      load_row(p.k.dtype, p.k.pointer, kv_row_offset(p.k, s, kv_head, key_begin + j), p.k.column,
               p.head_dim, x.k_row);
      for (int64_t d = 0; d < p.head_dim; ++d) x.k[d * p.kv_tile + j] = x.k_row[d];
    }
    for (int64_t d = 0; keys < p.kv_tile && d < p.head_dim; ++d) {
      for (int64_t j = keys; j < p.kv_tile; ++j) x.k[d * p.kv_tile + j] = 0;
    }
  }

  // Keys that no row sees, and the padding, are zero.
  void load_v(int64_t key_begin, int64_t keys, bool masked) {
    for (int64_t j = 0; j < p.kv_tile; ++j) {
      T* to = x.v + j * x.v_stride;
      int64_t loaded = 0;
      if (j < keys && (!masked || x.key_visible[j] != 0)) {
        load_row(p.v.dtype, p.v.pointer, kv_row_offset(p.v, s, kv_head, key_begin + j), p.v.column,
                 p.head_dim_v, to);
        loaded = p.head_dim_v;
      }
      for (int64_t d = loaded; d < x.v_stride; ++d) to[d] = 0;
    }
  }

  void load_bias(int64_t q, int64_t key_begin, int64_t keys) {
    load_row(
        p.bias.dtype, p.bias.pointer,
        s.batch * p.bias.batch + head * p.bias.head + q * p.bias.row + key_begin * p.bias.column,
        p.bias.column, keys, x.bias);
    for (int64_t j = keys; j < p.kv_tile; ++j) x.bias[j] = 0;
  }

  void load_distance(int64_t q, int64_t key_begin) {
    const int64_t diagonal = q + s.offset - key_begin;
    for (int64_t j = 0; j < p.kv_tile; ++j) {
      const int64_t distance = diagonal - j;
      x.distance[j] = static_cast<T>(distance < 0 ? -distance : distance);
    }
  }

  const ForwardParams& p;
  const Sequence s;
  const int64_t head;
  const int64_t kv_head;
  const int64_t row_begin;
  const policy::Visibility<int64_t> visibility;
  const policy::DataMask data_mask;
  const Scratch<T> x;
  policy::Score<T> score{};
  int64_t storage_rows = 0;  // rows of this tile that exist
  int64_t rows = 0;          // of those, in use
};

template <class T>
RUNMAX_INLINE void run_item(const ForwardParams& p, int64_t item, std::byte* scratch) {
  const WorkItem work = work_item(p, item, p.num_splits);
  ForwardItem<T> forward(p, work, scratch);
  if (p.num_splits > 1) {
    const int64_t begin = work.split * p.split_len;
    forward.attend(begin, begin + p.split_len);
    forward.store_partial(work.split);
  } else {
    forward.attend(0, policy::Visibility<int64_t>::kNoBound);
    forward.finish();
  }
}

template <class T>
RUNMAX_INLINE void run_merge_item(const ForwardParams& p, int64_t item, std::byte* scratch) {
  ForwardItem<T> forward(p, work_item(p, item, 1), scratch);
  forward.merge_partials();
  forward.finish();
}

}  // namespace runmax::cpu::RUNMAX_CPU_ISA
