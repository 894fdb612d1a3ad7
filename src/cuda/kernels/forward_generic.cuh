// The generic forward kernel: every type, head dim, stride and mask of the contract, tile by tile,
// in plain multiply-adds of float (double for F64).
//
//   work item = (sequence, query head, q tile [, kv split]) x block of V columns
//   for each kv tile that some row sees:
//     scores   S = Q K^T         [q tile, 64 keys] in registers; Q and K pass through shared memory
//                                16 head dims at a time, so that any head_dim fits
//     policy   scale, softcap, bias, ALiBi, then invisible pairs to -inf by select
//     softmax  running maximum and sum per row; S becomes P, in shared memory
//     product  O = alpha O + P V, in registers
//   at the end O / sum and lse = max + log(sum)
//
// In the products a thread of 16 x 16 owns rows {4 y + i, 64 + 4 y + i} and, of the keys or of
// every 64 columns of V, 4 x + c. In the softmax a warp takes 4 rows at a time, 8 lanes and 64 keys
// each.
//
// Sums are kept in levels, as on the CPU: a tile's product starts at zero and is added once; 4096
// keys (anchored at key 0) are reduced on their own and merged into a total, which waits in this
// block's part of the workspace. That bounds the rounding error whatever the length.
//
// Non-finite data: keys that no row of the tile sees are zeroed; invisible pairs are removed by
// select; where a NaN or inf of V still reached a neighbour through 0 * inf, that element's product
// is done again over its visible keys. A dot product that overflowed on the way to a representable
// score is done again in double.
#pragma once

#include "cuda/forward_params.h"
#include "cuda/numeric.cuh"

namespace runmax::cuda {

inline constexpr int kGenericThreads = 256;
inline constexpr int kGenericKeys = 64;  // of a kv tile
inline constexpr int kGenericDims = 16;  // of a pass through shared memory
inline constexpr int64_t kGenericChunk = 4096;

// What one item works on: the same for every thread, so it lies in shared memory.
template <class T>
struct GenericItem {
  Sequence s;
  int64_t head;
  int64_t kv_head;
  int64_t row_begin;
  int64_t v_begin;  // first column of V
  int64_t kv_begin, kv_end;
  int32_t split;
  int32_t storage_rows;  // rows of this tile that exist
  int32_t rows;          // of those, in use
  bool vectors;          // q and k can be loaded four elements at a time
  bool v_vectors;        // so can v
  policy::Visibility<int64_t> visibility;
  policy::TileRange<int64_t> tiles;
  policy::DataMask data_mask;
  policy::Score<T> score;
  policy::Dropout dropout;
};

// Shared memory of one block. Rows and keys are stored in groups of 4 whose place is swizzled, so
// that transposed writes and vector reads both meet few bank conflicts.
template <class T, int kRows, int kHalves>
struct GenericShared {
  static constexpr int kColumns = 64 * kHalves;
  struct Pass {  // 16 head dims of Q and K; two of them, so that one fills while the other is read
    T q[kGenericDims][kRows];
    T k[kGenericDims][kGenericKeys];
  };
  union {
    Pass pass[2];
    T v[kGenericKeys][kColumns];
  };
  T probs[kGenericKeys][kRows];  // dot products, then weights
  T row_max[kRows], row_sum[kRows], alpha[kRows];
  T total_max[kRows], total_sum[kRows];
  int32_t seen[kRows], total_seen[kRows];
  uint64_t selected[kRows];  // by block of rows: bit j = key j of the tile lies in a selected block
  uint8_t visible[kRows][8];  // key j of the tile: bit (j / 32) * 4 + j % 4 of byte j / 4 % 8
  uint32_t key_visible[8];    // likewise, over all rows
  GenericItem<T> item;
};

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T x[4];
};

// Place of row or key r at head dim d: groups of 4 swizzled by the dims that a warp writes.
__device__ __forceinline__ int generic_place(int r, int d) {
  return ((r / 4) ^ (d / 4 % 4 * 2)) * 4 + r % 4;
}
// Place of a row among the weights of a key, likewise.
__device__ __forceinline__ int generic_probs_place(int row, int key) {
  return ((row / 4) ^ (key / 4 % 16)) * 4 + row % 4;
}

// |scale| sum |q k| may be in range where sum |q k| is not.
template <class Stored, class T>
__device__ __noinline__ T wide_score(const ForwardParams& p, const GenericItem<T>& item,
                                     int64_t row, int64_t key, T bias) {
  const Stored* q =
      static_cast<const Stored*>(p.q.pointer) + policy::q_row_offset(p.q, item.s, item.head, row);
  const Stored* k = static_cast<const Stored*>(p.k.pointer) +
                    policy::kv_row_offset(p.k, item.s, item.kv_head, key);
  double dot = 0;
  for (int64_t d = 0; d < p.head_dim; ++d) {
    dot = fma(load_as<double>(q + d * p.q.column), load_as<double>(k + d * p.k.column), dot);
  }
  const policy::Score<double> wide = item.score.template as<double>();
  const double distance = fabs(static_cast<double>(row + item.s.offset - key));
  return static_cast<T>(wide.forward(dot, distance, static_cast<double>(bias)));
}

// Fills in what item `number` of the grid works on.
template <int kRows, int kColumns, class T>
__device__ __noinline__ void begin_item(const ForwardParams& p, int64_t number,
                                        GenericItem<T>& item) {
  const int64_t v_blocks = (p.head_dim_v + kColumns - 1) / kColumns;
  const WorkItem work = policy::work_item(p, number / v_blocks, p.num_splits);
  item.v_begin = number % v_blocks * kColumns;
  item.s = policy::sequence_of(p, work.sequence);
  item.head = work.head;
  item.kv_head = work.head / p.group_size;
  item.row_begin = work.tile * kRows;
  item.split = static_cast<int32_t>(work.split);
  item.kv_begin = p.num_splits > 1 ? work.split * p.split_len : 0;
  item.kv_end =
      p.num_splits > 1 ? item.kv_begin + p.split_len : policy::Visibility<int64_t>::kNoBound;
  item.storage_rows =
      static_cast<int32_t>(policy::clamped(item.s.q_len - item.row_begin, 0, kRows));
  item.rows =
      static_cast<int32_t>(policy::clamped(item.s.q_used - item.row_begin, 0, item.storage_rows));
  item.visibility = policy::visibility_of(p, item.s);
  item.tiles = {0, 0, 0};
  if (item.rows > 0) {
    item.tiles =
        item.visibility.tiles(item.row_begin, item.row_begin + item.rows, int64_t{kGenericKeys});
  }
  item.data_mask = policy::data_mask_of(p, item.s, work.head);
  item.score.scale = static_cast<T>(p.scale);
  item.score.softcap = static_cast<T>(p.softcap);
  item.score.has_softcap = p.softcap > 0;
  item.score.has_bias = p.bias.present();
  item.score.has_alibi = p.alibi_slopes.present();
  item.score.alibi_slope =
      item.score.has_alibi && item.rows > 0
          ? load_scalar<T>(p.alibi_slopes.dtype, p.alibi_slopes.pointer,
                           item.s.batch * p.alibi_slopes.batch + work.head * p.alibi_slopes.head)
          : T{0};
  item.dropout = policy::dropout_of(p);
}

// Stored: element type of q, k, v. T: type of arithmetic. kPerThread: rows of a thread (4 or 8).
// kHalves: 64-column parts of a V block (1 or 2).
template <class Stored, class T, int kPerThread, int kHalves>
class GenericForward {
 public:
  static constexpr int kRows = 16 * kPerThread;
  static constexpr int kColumns = 64 * kHalves;
  using Shared = GenericShared<T, kRows, kHalves>;

  __device__ __forceinline__ GenericForward(const ForwardParams& params, Shared& shared, T* total)
      : p(params),
        sm(shared),
        total_acc(total),
        x(threadIdx.x / 32 % 2 * 8 + threadIdx.x % 8),
        y(threadIdx.x / 64 * 4 + threadIdx.x % 32 / 8) {}

  __device__ __forceinline__ void run_item(int64_t number) {
    __syncthreads();  // the last item is done with shared memory
    if (threadIdx.x == 0) {
      begin_item<kRows, kColumns>(p, number, sm.item);
      sm.item.vectors = vectorised(p.q, p.head_dim) && vectorised(p.k, p.head_dim);
      sm.item.v_vectors = vectorised(p.v, p.head_dim_v);
    }
    for (int row = threadIdx.x; row < kRows; row += kGenericThreads) sm.total_seen[row] = 0;
    reset();
    attend();
    if (p.num_splits > 1) {
      store_partial();
    } else if (p.out.dtype == RUNMAX_F32) {
      finish<float>();
    } else {
      finish<Stored>();
    }
  }

 private:
  // Row i of this thread, in the tile.
  __device__ __forceinline__ int row_of(int i) const { return (i / 4) * 64 + 4 * y + i % 4; }

  // Every tile of keys that some row sees; between chunks, what came so far joins the total.
  __device__ __forceinline__ void attend() {
    const int64_t end = sm.item.tiles.end;
    int64_t chunk = -1;
    bool merged = false;
    int32_t cursor = 0;  // into the list of this thread's block of rows
#pragma unroll 1
    for (int64_t tile = 0; tile < end; ++tile) {
      if (tile >= sm.item.tiles.leading_end && tile < sm.item.tiles.begin) {
        tile = sm.item.tiles.begin;
        if (tile >= end) break;
      }
      const int64_t key_begin = tile * kGenericKeys;
      if (key_begin < sm.item.kv_begin) {
        tile = sm.item.kv_begin / kGenericKeys - 1;
        continue;
      }
      if (key_begin >= sm.item.kv_end) break;
      const int64_t row_begin = sm.item.row_begin;
      const int rows = sm.item.rows;
      const policy::TileClass tile_class = sm.item.visibility.classify(
          row_begin, row_begin + rows, key_begin, key_begin + kGenericKeys);
      if (tile_class == policy::TileClass::skip) continue;
      bool all_selected = true;
      if (p.blocks.active()) {
        uint64_t selected = 0;
        const bool mine = select_keys(key_begin, cursor, selected);
        if (!__syncthreads_or(mine && selected != 0)) continue;
        all_selected = __syncthreads_and(!mine || selected == ~uint64_t{0});
      }
      if (key_begin / kGenericChunk != chunk) {
        if (chunk >= 0) {
          merge_chunk();
          reset();
          merged = true;
        }
        chunk = key_begin / kGenericChunk;
      }
      attend_tile(key_begin, tile_class != policy::TileClass::full || rows < kRows ||
                                 !all_selected || sm.item.data_mask.active() ||
                                 sm.item.score.has_bias);
    }
    if (merged) merge_chunk();
  }

  // Block selection: a thread walks the list of one block of rows, and tiles come in rising order.
  // Which keys of the tile are selected; false for threads without a block.
  __device__ __forceinline__ bool select_keys(int64_t key_begin, int32_t& cursor,
                                              uint64_t& selected) {
    const int64_t first = sm.item.row_begin / p.blocks.block_q;
    const int64_t last = (sm.item.row_begin + sm.item.rows - 1) / p.blocks.block_q;
    if (first + threadIdx.x > last) return false;
    const int64_t list = p.blocks.list(sm.item.s.batch, sm.item.head, first + threadIdx.x);
    const int32_t* entries = p.blocks.entries + list * p.blocks.max_selected;
    const int32_t count = p.blocks.counts[list];
    while (cursor < count && (entries[cursor] + int64_t{1}) * p.blocks.block_kv <= key_begin) {
      ++cursor;
    }
    for (int32_t e = cursor; e < count; ++e) {
      const int64_t begin = entries[e] * p.blocks.block_kv - key_begin;
      if (begin >= kGenericKeys) break;
      const int64_t end = begin + p.blocks.block_kv;
      const uint64_t from = ~uint64_t{0} << (begin < 0 ? 0 : begin);
      selected |= end >= kGenericKeys ? from : from & ~(~uint64_t{0} << end);
    }
    sm.selected[threadIdx.x] = selected;
    return true;
  }

  // An empty state: in registers and in shared memory.
  __device__ __forceinline__ void reset() {
    for (int row = threadIdx.x; row < kRows; row += kGenericThreads) {
      sm.row_max[row] = kMinusInfinity<T>;
      sm.row_sum[row] = 0;
      sm.seen[row] = 0;
    }
    clear(acc);
    __syncthreads();
  }

  __device__ __forceinline__ void attend_tile(int64_t key_begin, bool masked) {
    const int keys =
        static_cast<int>(policy::clamped(sm.item.s.kv_used - key_begin, 0, kGenericKeys));
    if (threadIdx.x < 8) sm.key_visible[threadIdx.x] = 0;
    if (sm.item.vectors) {
      compute_scores<true>(key_begin, keys);
    } else {
      compute_scores<false>(key_begin, keys);
    }
    __syncthreads();
    Four<T> values[kLoads];
    if (sm.item.v_vectors) {
      fetch_v<true>(key_begin, keys, values);
    } else {
      fetch_v<false>(key_begin, keys, values);
    }
    if (masked) {
      softmax<true>(key_begin, keys);
    } else {
      softmax<false>(key_begin, keys);
    }
    __syncthreads();
    store_v(masked, values);
    __syncthreads();
    product(masked);
    __syncthreads();
  }

  // ---------------------------------------------------------------------------- scores

  // Four elements of a row from column d on, zero past the end.
  template <bool kVectors>
  __device__ __forceinline__ Four<T> fetch(const Operand& operand, const Stored* row, bool in_use,
                                           int64_t d, int64_t columns) const {
    Four<T> values{};
    if constexpr (kVectors) {
      if (!in_use || d >= columns) return values;
      const Four<Stored> four = *reinterpret_cast<const Four<Stored>*>(row + d);
#pragma unroll
      for (int i = 0; i < 4; ++i) values.x[i] = load_as<T>(&four.x[i]);
    } else {
      if (!in_use) return values;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (d + i < columns) values.x[i] = load_as<T>(row + (d + i) * operand.column);
      }
    }
    return values;
  }

  // Four neighbours can be loaded at once, wherever a row starts.
  __device__ __forceinline__ bool vectorised(const Operand& operand, int64_t columns) const {
    constexpr uintptr_t kBytes = 4 * sizeof(Stored);
    return operand.column == 1 && reinterpret_cast<uintptr_t>(operand.pointer) % kBytes == 0 &&
           ((operand.batch | operand.head | operand.row | columns) & 3) == 0;
  }

  // The dot products of the tile, into sm.probs.
  template <bool kVectors>
  __device__ __forceinline__ void compute_scores(int64_t key_begin, int keys) {
    const int r = threadIdx.x / 4;
    const int d4 = threadIdx.x % 4 * 4;
    const int rows = sm.item.rows;
    const Stored* q_row = static_cast<const Stored*>(p.q.pointer) +
                          policy::q_row_offset(p.q, sm.item.s, sm.item.head, sm.item.row_begin + r);
    const Stored* k_row = static_cast<const Stored*>(p.k.pointer) +
                          policy::kv_row_offset(p.k, sm.item.s, sm.item.kv_head, key_begin + r);
    Four<T> q[kRows / 64];
    Four<T> k;
    const auto fetch_pass = [&](int64_t d) {
#pragma unroll
      for (int n = 0; n < kRows / 64; ++n) {
        q[n] =
            fetch<kVectors>(p.q, q_row + n * 64 * p.q.row, r + n * 64 < rows, d + d4, p.head_dim);
      }
      k = fetch<kVectors>(p.k, k_row, r < keys, d + d4, p.head_dim);
    };
    const auto store_pass = [&](int buffer) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int n = 0; n < kRows / 64; ++n) {
          sm.pass[buffer].q[d4 + i][generic_place(r + n * 64, d4)] = q[n].x[i];
        }
        sm.pass[buffer].k[d4 + i][generic_place(r, d4)] = k.x[i];
      }
    };
    T dot[kPerThread][4];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) dot[i][c] = 0;
    }
    int buffer = 1;
#pragma unroll 1
    for (int64_t d = -kGenericDims; d < p.head_dim; d += kGenericDims) {
      const bool more = d + kGenericDims < p.head_dim;
      if (more) fetch_pass(d + kGenericDims);
      if (d >= 0) {
#pragma unroll
        for (int e = 0; e < kGenericDims; ++e) {
          T a[kPerThread];
#pragma unroll
          for (int n = 0; n < kPerThread / 4; ++n) {
            const Four<T> four = *reinterpret_cast<const Four<T>*>(
                &sm.pass[buffer].q[e][generic_place(64 * n + 4 * y, e)]);
#pragma unroll
            for (int i = 0; i < 4; ++i) a[4 * n + i] = four.x[i];
          }
          const Four<T> b =
              *reinterpret_cast<const Four<T>*>(&sm.pass[buffer].k[e][generic_place(4 * x, e)]);
#pragma unroll
          for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
            for (int c = 0; c < 4; ++c) dot[i][c] = fma(a[i], b.x[c], dot[i][c]);
          }
        }
      }
      buffer ^= 1;
      if (more) store_pass(buffer);
      __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < kPerThread / 4; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        Four<T> four;
#pragma unroll
        for (int i = 0; i < 4; ++i) four.x[i] = dot[4 * n + i][c];
        *reinterpret_cast<Four<T>*>(
            &sm.probs[4 * x + c][generic_probs_place(64 * n + 4 * y, 4 * x + c)]) = four;
      }
    }
  }

  // ---------------------------------------------------------------------------- softmax

  // Does a row see a key? Both in the tile. The pair's bias, where there is one, comes back too.
  __device__ __forceinline__ bool visible(int row, int key, int64_t lo, int64_t hi,
                                          int64_t key_begin, int keys, T& bias) const {
    const GenericItem<T>& item = sm.item;
    const int64_t j = key_begin + key;
    if (row >= item.rows || key >= keys || j >= hi ||
        (j < lo && j >= item.visibility.sink_tokens)) {
      return false;
    }
    const int64_t q = item.row_begin + row;
    if (p.blocks.active()) {
      const int64_t block = q / p.blocks.block_q - item.row_begin / p.blocks.block_q;
      if (((sm.selected[block] >> key) & 1) == 0) return false;
    }
    if (item.data_mask.active() && !item.data_mask.keep(q, j)) return false;
    if (!item.score.has_bias) return true;
    const int64_t at =
        item.s.batch * p.bias.batch + item.head * p.bias.head + q * p.bias.row + j * p.bias.column;
    bias = p.bias.dtype == RUNMAX_F32 ? load_as<T>(static_cast<const float*>(p.bias.pointer) + at)
                                      : load_as<T>(static_cast<const Stored*>(p.bias.pointer) + at);
    return bias != kMinusInfinity<T>;
  }

  // Dot products become weights; each row's statistics and alpha are brought up to date.
  // masked: not every row sees every key.
  template <bool masked>
  __device__ __forceinline__ void softmax(int64_t key_begin, int keys) {
    const int warp = threadIdx.x / 32;
    const int slot = threadIdx.x % 32 / 4;   // keys {4 slot + n, 32 + 4 slot + n}
    constexpr int kAtOnce = masked ? 1 : 2;  // rows in flight
    uint32_t key_bits = 0;
    policy::Score<T> score = sm.item.score;
    const bool plain = !score.has_softcap && !score.has_bias && !score.has_alibi;
#pragma unroll kAtOnce
    for (int row = warp * (kRows / 8) + threadIdx.x % 4; row < (warp + 1) * (kRows / 8); row += 4) {
      const int64_t q = sm.item.row_begin + row;
      const int64_t diagonal = q + sm.item.s.offset - key_begin;
      uint32_t bits = 0xff;
      uint32_t overflown = 0;
      T value[8];
      T tile_max = kMinusInfinity<T>;
      const int64_t lo = masked ? sm.item.visibility.lo(q) : 0;
      const int64_t hi = masked ? sm.item.visibility.hi(q) : 0;
      if (!masked && plain) {
        T bad = 0;  // NaN as soon as one of them is not finite
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const int key = n / 4 * 32 + 4 * slot + n % 4;
          const T dot = sm.probs[key][generic_probs_place(row, key)];
          bad = fma(dot, T{0}, bad);
          value[n] = dot * score.scale;
        }
        if (!finite(bad)) {
#pragma unroll
          for (int n = 0; n < 8; ++n) overflown |= finite(value[n]) ? 0u : 1u << n;
        }
      } else {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const int key = n / 4 * 32 + 4 * slot + n % 4;
          T bias = 0;
          const bool live = !masked || visible(row, key, lo, hi, key_begin, keys, bias);
          if (!live) bits &= ~(1u << n);
          const int64_t apart = diagonal - key;
          const T distance = static_cast<T>(apart < 0 ? -apart : apart);
          const T dot = sm.probs[key][generic_probs_place(row, key)];
          value[n] = live ? score.forward(dot, distance, bias) : kMinusInfinity<T>;
          if (live && !finite(dot)) overflown |= 1u << n;
        }
      }
      if (sizeof(T) < sizeof(double) && overflown != 0) {
#pragma unroll 1
        for (int n = 0; n < 8; ++n) {
          if (((overflown >> n) & 1) == 0) continue;
          const int key = n / 4 * 32 + 4 * slot + n % 4;
          T bias = 0;
          if (masked) visible(row, key, lo, hi, key_begin, keys, bias);
          const T score = wide_score<Stored>(p, sm.item, q, key_begin + key, bias);
#pragma unroll
          for (int m = 0; m < 8; ++m) value[m] = m == n ? score : value[m];
        }
      }
#pragma unroll
      for (int n = 0; n < 8; ++n) tile_max = max_of(tile_max, value[n]);
#pragma unroll
      for (int lane = 4; lane < 32; lane *= 2) {
        tile_max = max_of(tile_max, __shfl_xor_sync(~0u, tile_max, lane));
      }
      const T old_max = sm.row_max[row];
      const T new_max = tile_max > old_max ? tile_max : old_max;
      const T subtract = safe_max(new_max);
      const T alpha = exp_of(old_max - subtract);
      T sum = 0;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        value[n] = exp_of(value[n] - subtract);
        sum += value[n];
      }
#pragma unroll
      for (int lane = 4; lane < 32; lane *= 2) sum += __shfl_xor_sync(~0u, sum, lane);
      const uint32_t row_lanes = 0x11111111u << (threadIdx.x % 4);
      const bool seen = (__ballot_sync(~0u, bits != 0) & row_lanes) != 0;
      if (sm.item.dropout.active) drop(q, key_begin / 4 + slot, value);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const int key = n / 4 * 32 + 4 * slot + n % 4;
        sm.probs[key][generic_probs_place(row, key)] = seen ? value[n] : T{0};
      }
      if (masked) {
        sm.visible[row][slot] = static_cast<uint8_t>(bits);
        key_bits |= bits;
      }
      __syncwarp();
      if (slot == 0) {  // a row that sees no key of the tile keeps its state to the bit
        sm.alpha[row] = seen ? alpha : T{1};
        if (seen) {
          sm.row_max[row] = new_max;
          sm.row_sum[row] = fma(sm.row_sum[row], alpha, sum);
          sm.seen[row] = 1;
        }
      }
    }
    if (masked && key_bits != 0) atomicOr(&sm.key_visible[slot], key_bits);
  }

  __device__ __forceinline__ void drop(int64_t q, int64_t kv_quad, T (&value)[8]) const {
    const policy::Dropout& dropout = sm.item.dropout;
    const auto batch_head = static_cast<uint32_t>(sm.item.s.batch * p.q_heads + sm.item.head);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const PhiloxBlock block = dropout.words(batch_head, static_cast<uint32_t>(q),
                                              static_cast<uint32_t>(kv_quad + 8 * half));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        T& weight = value[4 * half + n];
        weight = dropout.keep(block.word[n]) ? weight * static_cast<T>(dropout.keep_scale) : T{0};
      }
    }
  }

  // ---------------------------------------------------------------------------- product

  static constexpr int kGroups = kColumns / 4;  // threads that load one key
  static constexpr int kKeyStep = kGenericThreads / kGroups;
  static constexpr int kLoads = kGenericKeys / kKeyStep;

  // The values are on their way while the softmax runs.
  template <bool kVectors>
  __device__ __forceinline__ void fetch_v(int64_t key_begin, int keys, Four<T> (&values)[kLoads]) {
    const int first = threadIdx.x / kGroups;
    const Stored* row = static_cast<const Stored*>(p.v.pointer) +
                        policy::kv_row_offset(p.v, sm.item.s, sm.item.kv_head, key_begin + first);
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      values[n] = fetch<kVectors>(p.v, row + n * kKeyStep * p.v.row, first + n * kKeyStep < keys,
                                  sm.item.v_begin + threadIdx.x % kGroups * 4, p.head_dim_v);
    }
  }

  // Keys that no row sees become zero.
  __device__ __forceinline__ void store_v(bool masked, const Four<T> (&values)[kLoads]) {
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      const int key = threadIdx.x / kGroups + n * kKeyStep;
      const bool seen =
          !masked || ((sm.key_visible[key / 4 % 8] >> (key / 32 * 4 + key % 4)) & 1) != 0;
      *reinterpret_cast<Four<T>*>(&sm.v[key][threadIdx.x % kGroups * 4]) =
          seen ? values[n] : Four<T>{};
    }
  }

  // O = alpha O + P V
  __device__ __forceinline__ void product(bool masked) {
    T sum[kHalves][kPerThread][4];
    clear(sum);
#pragma unroll 2
    for (int outer = 0; outer < kGenericKeys; outer += 4) {  // one swizzle for four keys
      const T* probs = &sm.probs[outer][generic_probs_place(4 * y, outer)];
      const T* v = &sm.v[outer][4 * x];
#pragma unroll
      for (int inner = 0; inner < 4; ++inner) {
        T a[kPerThread];
#pragma unroll
        for (int n = 0; n < kPerThread / 4; ++n) {
          const Four<T> four = *reinterpret_cast<const Four<T>*>(probs + inner * kRows + 64 * n);
#pragma unroll
          for (int i = 0; i < 4; ++i) a[4 * n + i] = four.x[i];
        }
#pragma unroll
        for (int h = 0; h < kHalves; ++h) {
          const Four<T> b = *reinterpret_cast<const Four<T>*>(v + inner * kColumns + 64 * h);
#pragma unroll
          for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
            for (int c = 0; c < 4; ++c) sum[h][i][c] = fma(a[i], b.x[c], sum[h][i][c]);
          }
        }
      }
    }
    if (masked && !all_finite(sum)) product_of_visible(sum);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const T alpha = sm.alpha[row_of(i)];
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
#pragma unroll
        for (int c = 0; c < 4; ++c) acc[h][i][c] = fma(acc[h][i][c], alpha, sum[h][i][c]);
      }
    }
  }

  // The slow path for data with NaN or inf: 0 * inf of an invisible pair must not count.
  __device__ __forceinline__ void product_of_visible(T (&sum)[kHalves][kPerThread][4]) const {
    clear(sum);
#pragma unroll 1
    for (int key = 0; key < kGenericKeys; ++key) {
      const T* v = &sm.v[key][4 * x];
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const int row = row_of(i);
        if (((sm.visible[row][key / 4 % 8] >> (key / 32 * 4 + key % 4)) & 1) == 0) continue;
        const T weight = sm.probs[key][generic_probs_place(row, key)];
#pragma unroll
        for (int h = 0; h < kHalves; ++h) {
#pragma unroll
          for (int c = 0; c < 4; ++c) sum[h][i][c] = fma(weight, v[64 * h + c], sum[h][i][c]);
        }
      }
    }
  }

  static __device__ __forceinline__ void clear(T (&values)[kHalves][kPerThread][4]) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) values[h][i][c] = 0;
      }
    }
  }

  static __device__ __forceinline__ bool all_finite(const T (&values)[kHalves][kPerThread][4]) {
    bool all = true;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) all &= finite(values[h][i][c]);
      }
    }
    return all;
  }

  // ---------------------------------------------------------------------------- ends

  // This chunk's state joins the total; the result is the state at hand, too.
  __device__ __forceinline__ void merge_chunk() {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int row = row_of(i);
      const bool mine = sm.seen[row] != 0;
      const bool theirs = sm.total_seen[row] != 0;
      T keep = theirs ? T{1} : T{0};
      T add = mine ? T{1} : T{0};
      if (mine && theirs) {
        const T subtract = safe_max(larger(sm.row_max[row], sm.total_max[row]));
        keep = exp_of(sm.total_max[row] - subtract);
        add = exp_of(sm.row_max[row] - subtract);
      }
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        Four<T>& total = reinterpret_cast<Four<T>*>(
            total_acc)[(h * kPerThread + i) * kGenericThreads + threadIdx.x];
        Four<T> four{};
        if (theirs) four = total;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if (mine) four.x[c] = theirs ? fma(acc[h][i][c], add, four.x[c] * keep) : acc[h][i][c];
          acc[h][i][c] = four.x[c];
        }
        total = four;
      }
    }
    __syncthreads();
    for (int row = threadIdx.x; row < kRows; row += kGenericThreads) {
      if (sm.seen[row] != 0) {
        if (sm.total_seen[row] == 0) {
          sm.total_max[row] = sm.row_max[row];
          sm.total_sum[row] = sm.row_sum[row];
        } else {
          const T max = larger(sm.row_max[row], sm.total_max[row]);
          const T subtract = safe_max(max);
          sm.total_sum[row] = fma(sm.row_sum[row], exp_of(sm.row_max[row] - subtract),
                                  sm.total_sum[row] * exp_of(sm.total_max[row] - subtract));
          sm.total_max[row] = max;
        }
        sm.total_seen[row] = 1;
      }
      if (sm.total_seen[row] != 0) {
        sm.row_max[row] = sm.total_max[row];
        sm.row_sum[row] = sm.total_sum[row];
        sm.seen[row] = 1;
      }
    }
    __syncthreads();
  }

  static __device__ __forceinline__ T larger(T a, T b) { return a > b ? a : b; }

  __device__ __forceinline__ void store_partial() const {
    const int64_t columns = partial_columns<T>(p.head_dim_v);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int row = row_of(i);
      if (row >= sm.item.rows) continue;
      T* to = partial_row<T>(p, sm.item.s, sm.item.head, sm.item.row_begin + row, sm.item.split);
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const int64_t column = sm.item.v_begin + 64 * h + 4 * x;
        if (column < columns) {
          Four<T> four;
#pragma unroll
          for (int c = 0; c < 4; ++c) four.x[c] = acc[h][i][c];
          *reinterpret_cast<Four<T>*>(to + column) = four;
        }
      }
      if (x == 0 && sm.item.v_begin == 0) {
        to[columns] = sm.row_max[row];
        to[columns + 1] = sm.row_sum[row];
        to[columns + 2] = static_cast<T>(sm.seen[row]);
      }
    }
  }

  // Normalises and writes every row of the tile, those not in use included.
  template <class Out>
  __device__ __forceinline__ void finish() {
    const int rows = sm.item.rows;
    const int written = p.keep_unused ? rows : sm.item.storage_rows;
    const bool has_sink = p.sink.present();
    for (int row = threadIdx.x; row < written; row += kGenericThreads) {
      Finished<T> end{T{0}, kMinusInfinity<T>, T{0}};
      if (row < rows) {
        const T sink =
            has_sink ? load_scalar<T>(p.sink.dtype, p.sink.pointer, sm.item.head * p.sink.head)
                     : T{0};
        end = finish_row(sm.row_max[row], sm.row_sum[row], sm.seen[row] != 0, has_sink, sink);
      }
      sm.alpha[row] = end.out_scale;
      if (sm.item.v_begin == 0) {
        store_statistics(p, sm.item.s, sm.item.head, sm.item.row_begin + row, end.lse, end.lse_lo);
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int row = row_of(i);
      if (row >= written) continue;
      Out* to = static_cast<Out*>(p.out.pointer) +
                policy::q_row_offset(p.out, sm.item.s, sm.item.head, sm.item.row_begin + row);
      const T scale = sm.alpha[row];
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int64_t column = sm.item.v_begin + 64 * h + 4 * x + c;
          // Adding 0 turns -0, which an underflow can leave, into the +0 of every other path.
          const T value = row < rows ? fma(acc[h][i][c], scale, T{0}) : T{0};
          if (column < p.head_dim_v) store_as(to + column * p.out.column, value);
        }
      }
    }
  }

  const ForwardParams& p;
  Shared& sm;
  T* const total_acc;  // of this block, in the workspace
  const int x, y;
  T acc[kHalves][kPerThread][4];
};

// Blocks take items one after another: by `next` (zero before the launch) where there are more
// items than blocks, so that long and short ones even out.
template <class Stored, class T, int kPerThread, int kHalves>
__global__ void __launch_bounds__(kGenericThreads, 1)
    forward_generic(const __grid_constant__ ForwardParams p, T* totals, unsigned long long* next) {
  using Kernel = GenericForward<Stored, T, kPerThread, kHalves>;
  extern __shared__ __align__(16) unsigned char bytes[];
  __shared__ int64_t taken;
  constexpr int64_t kTotal = int64_t{Kernel::kRows} * Kernel::kColumns;
  Kernel kernel(p, *reinterpret_cast<typename Kernel::Shared*>(bytes),
                totals + blockIdx.x * kTotal);
  const int64_t v_blocks = (p.head_dim_v + Kernel::kColumns - 1) / Kernel::kColumns;
  const int64_t items = item_count(p) * v_blocks;
  for (int64_t item = blockIdx.x; item < items;) {
    if (next != nullptr) {
      if (threadIdx.x == 0) taken = static_cast<int64_t>(atomicAdd(next, 1ull));
      __syncthreads();
      item = taken;
      if (item >= items) return;
    }
    kernel.run_item(item);
    if (next == nullptr) item += gridDim.x;
  }
}

}  // namespace runmax::cuda
