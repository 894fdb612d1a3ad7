// The portable tensor-core forward kernel (sm_80 and later): bf16 and f16, head dims up to 256.
//
//   block = (sequence, query head, q tile [, kv split]); a warp owns 16 or 32 rows of it
//   for each kv tile that some row sees, copied to shared memory while the one before is at work:
//     scores   S = Q K^T      mma.sync m16n8k16, f32, in registers
//     policy   (kFeatures) scale, softcap, bias, ALiBi, data masks; partial tiles: invisible to
//     -inf softmax  S becomes P in place (softmax.cuh); rounded in pairs it is the A operand of
//     product  O += P V       mma.sync, f32, in registers
//   at the end O / sum and lse
//
// The fast instances know only what is decided by positions: causal, windows, leading tokens,
// prefixes, lengths. A tile is masked only where a warp's rows see a part of it, and passed over by
// warps that see none of it. Instances with kFeatures take everything else of the contract.
//
// A row's bits depend on its own data alone: tiles of a fixed size are counted from key 0, visited
// in order, and every decision is taken per row. Both kinds of instance compute the same bits.
//
// Non-finite data: keys that no row of the block sees are zeros in shared memory; invisible scores
// are removed by select; a block with a non-finite result is done again by recompute_rows().
#pragma once

#include "cuda/forward_sm80.h"
#include "cuda/kernels/forward_exact.cuh"
#include "cuda/softmax.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace runmax::cuda::sm80 {

// kMTiles: 16-row tiles of a warp, for scores. kStages: kv tiles in shared memory. kBlocks: per SM,
// at least. kPaired: two warps of 16 rows each share the second product: each takes half of the
// columns of both's rows, which halves the reads of V. Their weights pass through shared memory.
template <class Element_, int kHeadDim_, int kWarps_, int kMTiles_, int kKvTile_, int kStages_,
          bool kQInRegisters_, int kBlocks_, bool kFeatures_, bool kPaired_ = false>
struct ForwardConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kMTiles = kMTiles_;
  static constexpr int kKvTile = kKvTile_;
  static constexpr int kStages = kStages_;
  static constexpr bool kQInRegisters = kQInRegisters_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr bool kFeatures = kFeatures_;
  static constexpr bool kPaired = kPaired_;
  static_assert(!kPaired || (kMTiles == 1 && kWarps % 2 == 0), "pairs of warps of 16 rows");

  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kWarpRows = 16 * kMTiles;
  static constexpr int kQTile = kWarps * kWarpRows;
  using Tile = SharedTile<kHeadDim>;
  static constexpr int kQBytes = Tile::bytes(kQTile);
  static constexpr int kKvBytes = Tile::bytes(kKvTile);  // of K or V
  using Probs = SharedTile<kKvTile>;
  static constexpr int kProbsBytes = kPaired ? Probs::bytes(kQTile) : 0;
  static constexpr int kSharedBytes = kQBytes + 2 * kStages * kKvBytes + kProbsBytes;
};

// Visibility in 32 bits: positions and lengths are below 2^29, so that bounds further away decide
// nothing. The offset is folded into the windows.
__device__ __forceinline__ policy::Visibility<int> narrow(const policy::Visibility<int64_t>& v) {
  using Wide = policy::Visibility<int64_t>;
  policy::Visibility<int> n{};
  n.kv_len = static_cast<int>(v.kv_len);
  n.offset = 0;
  n.window_left = v.window_left >= Wide::kNoBound
                      ? policy::Visibility<int>::kNoBound
                      : policy::clamp_position<int>(v.window_left - v.offset);
  n.window_right = v.window_right >= Wide::kNoBound
                       ? policy::Visibility<int>::kNoBound
                       : policy::clamp_position<int>(v.window_right + v.offset);
  n.sink_tokens = policy::clamp_position<int>(v.sink_tokens);
  n.prefix_len = policy::clamp_position<int>(v.prefix_len);
  return n;
}

// Number of a block -> its work. Dense: sections of heads, so that their keys stay in L2, and in a
// section the last rows first, because under a causal mask they see most keys.
template <class Int>
__device__ __forceinline__ WorkItem dense_item(const ForwardArgs& a, Int number) {
  const ForwardParams& p = a.p;
  WorkItem w{};
  const Int splits = static_cast<Int>(p.num_splits);
  const Int tiles = static_cast<Int>(p.tiles_per_sequence);
  const Int heads = static_cast<Int>(p.q_heads);
  const Int pairs = static_cast<Int>(p.batch) * heads;
  if (splits > 1) {
    w.split = static_cast<int64_t>(number % splits);
    number /= splits;
  }
  const Int section = number / (a.section * tiles);
  const Int first = section * a.section;
  const Int size = pairs - first < a.section ? pairs - first : a.section;
  const Int within = number - first * tiles;
  const Int tile = within / size;
  const Int pair = first + within - tile * size;
  w.sequence = static_cast<int64_t>(pair / heads);
  w.head = static_cast<int64_t>(pair % heads);
  w.tile = static_cast<int64_t>(tiles - 1 - tile);
  return w;
}

__device__ __forceinline__ WorkItem decode(const ForwardArgs& a, uint64_t number) {
  if (a.p.tile_start != nullptr) {
    return policy::work_item(a.p, static_cast<int64_t>(number), a.p.num_splits);
  }
  const bool narrow_numbers = static_cast<uint64_t>(gridDim.x) * gridDim.y < (uint64_t{1} << 31);
  return narrow_numbers ? dense_item<uint32_t>(a, static_cast<uint32_t>(number))
                        : dense_item<uint64_t>(a, number);
}

// What a block works on. It lies in shared memory, because registers are short in the loop over
// keys and most of this is needed only outside of it.
struct BlockContext {
  Sequence s;
  int64_t head;
  int64_t split;
  int row_begin;     // first row of the block, in the sequence
  int storage_rows;  // rows of the block that exist
  int rows;          // of those, in use
  int kv_begin;      // keys of this split
  int kv_end;
  policy::Visibility<int> visibility;
  RowFilter seen_keys;  // some row of the block sees
  int first_tile;       // the kv tiles of those: first_tile, ... up to leading_end,
  int leading_end;      // then from window_begin on,
  int window_begin;     // num_tiles in all
  int num_tiles;
  int last_tile;
  int whole_begin;  // tiles that every row of the block sees all of, and whose copies need no
  int whole_end;    // filter
  const void* q;    // row 0 of the block
  const void* k;    // key 0 of the sequence
  const void* v;
};

// The keys that a warp's rows see: some row does, every row does.
struct WarpKeys {
  int some_begin;
  int some_end;
  int all_begin;
  int all_end;
};

template <class Element>
__device__ __forceinline__ BlockContext context_of(const ForwardParams& p, const WorkItem& item,
                                                   int q_tile, int kv_tile, bool whole_pieces) {
  BlockContext c;
  c.s = policy::sequence_of(p, item.sequence);
  c.head = item.head;
  c.split = item.split;
  c.row_begin = static_cast<int>(item.tile) * q_tile;
  c.storage_rows = static_cast<int>(policy::clamped(c.s.q_len - c.row_begin, 0, q_tile));
  c.rows = static_cast<int>(policy::clamped(c.s.q_used - c.row_begin, 0, c.storage_rows));
  c.visibility = narrow(policy::visibility_of(p, c.s));
  c.num_tiles = 0;
  c.kv_begin = 0;
  c.kv_end = c.visibility.kv_len;
  if (p.num_splits > 1) {
    const int64_t begin = item.split * p.split_len;
    c.kv_begin = static_cast<int>(begin < c.kv_end ? begin : c.kv_end);
    c.kv_end = static_cast<int>(begin + p.split_len < c.kv_end ? begin + p.split_len : c.kv_end);
  }
  if (c.rows > 0) {
    c.seen_keys = {c.visibility.lo(c.row_begin),
                   min(c.visibility.hi(c.row_begin + c.rows - 1), c.kv_end),
                   c.visibility.sink_tokens};
    const auto range = c.visibility.tiles(c.row_begin, c.row_begin + c.rows, kv_tile);
    const int begin = c.kv_begin / kv_tile;
    const int end = (c.kv_end + kv_tile - 1) / kv_tile;
    c.leading_end = max(min(range.leading_end, end), begin);
    c.window_begin = max(range.begin, begin);
    c.first_tile = begin < c.leading_end ? begin : c.window_begin;
    c.num_tiles = c.leading_end - begin + max(min(range.end, end) - c.window_begin, 0);
    if (c.kv_begin >= c.kv_end) c.num_tiles = 0;
    const int window_tiles = min(range.end, end) - c.window_begin;
    c.last_tile = window_tiles > 0 ? c.window_begin + window_tiles - 1 : c.leading_end - 1;
    c.whole_begin = (c.visibility.lo(c.row_begin + c.rows - 1) + kv_tile - 1) / kv_tile;
    c.whole_end = whole_pieces ? min(c.visibility.hi(c.row_begin), c.kv_end) / kv_tile : 0;
  }
  const int64_t kv_head = static_cast<uint32_t>(c.head) / static_cast<uint32_t>(p.group_size);
  c.q = static_cast<const Element*>(p.q.pointer) +
        policy::q_row_offset(p.q, c.s, c.head, c.row_begin);
  c.k = static_cast<const Element*>(p.k.pointer) + policy::kv_row_offset(p.k, c.s, kv_head, 0);
  c.v = static_cast<const Element*>(p.v.pointer) + policy::kv_row_offset(p.v, c.s, kv_head, 0);
  return c;
}

template <class Config>
class ForwardBlock {
 public:
  using Element = typename Config::Element;
  using Tile = typename Config::Tile;
  static constexpr int kHeadDim = Config::kHeadDim;
  static constexpr int kMTiles = Config::kMTiles;
  static constexpr int kKvTile = Config::kKvTile;
  static constexpr int kNTiles = kKvTile / 8;  // of scores
  // Of out: its m-tile 0 has this warp's rows, if paired m-tile 1 those of the other warp.
  static constexpr int kOutMTiles = Config::kPaired ? 2 : kMTiles;
  static constexpr int kDTiles = kHeadDim / 8 / (Config::kPaired ? 2 : 1);
  static constexpr int kKSteps = kHeadDim / 16;  // of the first product ...
  static constexpr int kPSteps = kKvTile / 16;   // ... and of the second
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kStages = Config::kStages;
  static constexpr int kTilesOfGroup = 64;
  using KvCopy = AsyncCopy<kKvTile, kHeadDim, kThreads>;
  using Totals = float2[kThreads];  // (sum, reference) by thread

  // `c` and `late` hold the same; what is read through `c` may stay in registers.
  __device__ __forceinline__ ForwardBlock(const ForwardArgs& args, unsigned char* shared,
                                          const BlockContext& late, WarpKeys& warp_keys,
                                          Totals* totals, float* row_values)
      : a(args),
        p(args.p),
        shared_(shared),
        late_(late),
        warp_keys_(warp_keys),
        totals_(totals),
        row_values_(row_values) {
    warp_row = static_cast<int>(threadIdx.x / 32) * Config::kWarpRows;
  }

  __device__ __forceinline__ void run(const BlockContext& c) {
    states.init();
#pragma unroll
    for (int i = 0; i < 2 * kMTiles; ++i) totals_[i][threadIdx.x] = {0.0f, kMinusInfinity<float>};
#pragma unroll
    for (int m = 0; m < kOutMTiles; ++m) {
#pragma unroll
      for (int d = 0; d < kDTiles; ++d) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][d][i] = 0;
      }
    }
    if (c.num_tiles > 0) attend(c);
    const bool bad = finish();
    if (bad) {
      recompute_rows<Element, kHeadDim>(p, late_.s, late_.head, late_.row_begin,
                                        late_.row_begin + late_.rows, late_.split, late_.kv_begin,
                                        late_.kv_end);
    }
  }

 private:
  __device__ __forceinline__ bool natural() const { return Config::kFeatures && a.scale_log2 == 0; }
  __device__ __forceinline__ int lane() const { return static_cast<int>(threadIdx.x % 32); }
  // Row within the block of element pair h of m-tile m.
  __device__ __forceinline__ int row_of(int m, int h) const {
    return warp_row + 16 * m + 8 * h + lane() / 4;
  }
  // Likewise of m-tile m of out, and its first column.
  __device__ __forceinline__ int out_row_of(int m, int h) const {
    return Config::kPaired ? (warp_row ^ (16 * m)) + 8 * h + lane() / 4 : row_of(m, h);
  }
  __device__ __forceinline__ int out_column() const {
    return Config::kPaired ? warp_row % 32 / 16 * (kHeadDim / 2) : 0;
  }
  // Rows [first, first + count) that this warp takes part in.
  static constexpr int kSharedRows = 16 * kOutMTiles;
  __device__ __forceinline__ int first_row() const {
    return Config::kPaired ? warp_row / 32 * 32 : warp_row;
  }
  __device__ __forceinline__ uint32_t q_shared() const { return ptx::shared_address(shared_); }
  __device__ __forceinline__ uint32_t k_shared(int stage) const {
    return q_shared() + static_cast<uint32_t>(Config::kQBytes + 2 * stage * Config::kKvBytes);
  }
  __device__ __forceinline__ uint32_t v_shared(int stage) const {
    return k_shared(stage) + static_cast<uint32_t>(Config::kKvBytes);
  }

  __device__ __forceinline__ void attend(const BlockContext& c) {
    set_warp_keys(c);
    if constexpr (Config::kFeatures) prepare_features();

    load<Config::kQTile>(0, source(c.q, p.q, p.head_dim), 0, {0, c.rows, 0});
    int tile = c.first_tile;
    load_tile<true, kStages == 2>(tile, 0);
    ptx::commit_copies();
    if constexpr (Config::kQInRegisters) {
      ptx::wait_copies<0>();
      __syncthreads();
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
        for (int k = 0; k < kKSteps; ++k) load_q_fragment(m, k, q_fragments[m][k]);
      }
    }
    tile_ = tile;
    stage_ = 0;
    // All warps take the same steps, with or without work. Two stages: the copies of the next tile
    // are issued while the first product finishes, so that it can begin right after the barrier.
    const bool has_rows = first_row() < c.rows;
    for (;;) {
      const bool whole = is_whole(tile_);
      const bool works = has_rows && (whole || warp_sees(tile_));
      const bool partial = !whole && !warp_sees_all(tile_ * kKvTile);
      ptx::wait_copies<0>();
      __syncthreads();
      if constexpr (kStages == 1) {
        load_tile<false, true>(tile_, 0);
        ptx::commit_copies();
      }
      if (works) score_tile(partial);
      if constexpr (kStages == 1) {  // V has arrived, and every warp is done with K
        ptx::wait_copies<0>();
        __syncthreads();
      }
      if (tile_ != late_.last_tile) {
        load_tile<true, kStages == 2>(tile_after(tile_), kStages == 2 ? stage_ ^ 1 : 0);
      }
      ptx::commit_copies();
      if (works) {
        float alpha[kMTiles][2];
        const bool rescales = update_states(alpha);
        if constexpr (Config::kFeatures) drop(tile_ * kKvTile);
        if constexpr (Config::kPaired) {
          add_paired_product(alpha[0], rescales);
        } else {
          add_product();
        }
      }
      if (tile_ == late_.last_tile) break;
      const int next = tile_after(tile_);
      if (next / kTilesOfGroup != tile_ / kTilesOfGroup) close_group();
      tile_ = next;
      if constexpr (kStages == 2) stage_ ^= 1;
    }
  }

  // ---------------------------------------------------------------- steps

  __device__ __forceinline__ int tile_after(int tile) const {
    return tile + 1 == late_.leading_end ? late_.window_begin : tile + 1;
  }

  // ---------------------------------------------------------------- copies

  static __device__ __forceinline__ TileSource<Element> source(const void* base, const Operand& x,
                                                               int64_t columns) {
    return {static_cast<const Element*>(base), x.row, x.column, static_cast<int>(columns)};
  }
  template <int kRows>
  __device__ __forceinline__ void load(int offset, const TileSource<Element>& from, int first_row,
                                       RowFilter filter) {
    const int thread = static_cast<int>(threadIdx.x);
    if constexpr (Config::kFeatures) {
      if (!a.async_copies) {
        load_tile_elements<kRows, kHeadDim, kThreads>(shared_ + offset, from, first_row, filter,
                                                      thread);
        return;
      }
    }
    AsyncCopy<kRows, kHeadDim, kThreads>::filtered(q_shared() + static_cast<uint32_t>(offset), from,
                                                   first_row, filter, thread);
  }
  __device__ __forceinline__ bool is_whole(int tile) const {
    return tile >= late_.whole_begin && tile < late_.whole_end;
  }
  __device__ __forceinline__ RowFilter keys_from(int key_begin) const {
    const RowFilter& seen = late_.seen_keys;
    return {seen.begin - key_begin, seen.end - key_begin, seen.leading - key_begin};
  }
  // The copies of K and / or V of a tile.
  template <bool kK, bool kV>
  __device__ __forceinline__ void load_tile(int tile, int stage) {
    const int key_begin = tile * kKvTile;
    const int k_offset = Config::kQBytes + 2 * stage * Config::kKvBytes;
    const int v_offset = k_offset + Config::kKvBytes;
    if (is_whole(tile)) {
      const int thread = static_cast<int>(threadIdx.x);
      const uint32_t to = q_shared() + KvCopy::offset(thread);
      const int64_t row = key_begin + KvCopy::row(thread);
      const int column = KvCopy::column(thread);
      if constexpr (kK) {
        KvCopy::whole(to + static_cast<uint32_t>(k_offset),
                      static_cast<const Element*>(late_.k) + row * p.k.row + column, p.k.row);
      }
      if constexpr (kV) {
        KvCopy::whole(to + static_cast<uint32_t>(v_offset),
                      static_cast<const Element*>(late_.v) + row * p.v.row + column, p.v.row);
      }
      return;
    }
    const RowFilter keys = keys_from(key_begin);
    if constexpr (kK) load<kKvTile>(k_offset, source(late_.k, p.k, p.head_dim), key_begin, keys);
    if constexpr (kV) load<kKvTile>(v_offset, source(late_.v, p.v, p.head_dim_v), key_begin, keys);
  }

  // ---------------------------------------------------------------- products

  __device__ __forceinline__ void load_q_fragment(int m, int k, uint32_t (&fragment)[4]) const {
    ptx::ldmatrix_x4(fragment,
                     q_shared() + Tile::lane_offset(lane()) +
                         static_cast<uint32_t>((warp_row + 16 * m) * Tile::kRowBytes + 32 * k));
  }

  __device__ __forceinline__ void score_tile(bool partial) {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[m][n][i] = 0;
      }
    }
    const uint32_t k_lane = k_shared(stage_) + Tile::lane_offset_transposed(lane());
#pragma unroll
    for (int k = 0; k < kKSteps; ++k) {
      uint32_t q[kMTiles][4];
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        if constexpr (Config::kQInRegisters) {
#pragma unroll
          for (int i = 0; i < 4; ++i) q[m][i] = q_fragments[m][k][i];
        } else {
          load_q_fragment(m, k, q[m]);
        }
      }
#pragma unroll
      for (int n = 0; n < kNTiles; n += 2) {
        uint32_t b[4];
        ptx::ldmatrix_x4(b, k_lane + static_cast<uint32_t>(n * 8 * Tile::kRowBytes + 32 * k));
#pragma unroll
        for (int m = 0; m < kMTiles; ++m) {
          ptx::mma_m16n8k16<Element>(scores[m][n], q[m], b[0], b[1]);
          ptx::mma_m16n8k16<Element>(scores[m][n + 1], q[m], b[2], b[3]);
        }
      }
    }
    const int key_begin = tile_ * kKvTile;
    if constexpr (Config::kFeatures) {
      apply_features(key_begin, partial);
    } else {
      if (partial) hide_invisible(key_begin);
    }
  }

  // Fragment k of P: weights rounded in pairs.
  __device__ __forceinline__ void probs_of(int m, int k, uint32_t (&probs)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&c)[4] = scores[m][2 * k + i / 2];
      probs[i] = ptx::pack<Element>(c[2 * (i % 2)], c[2 * (i % 2) + 1]);
    }
  }
  // out += P V for the 16 keys of fragment k.
  __device__ __forceinline__ void add_fragment(int k, const uint32_t (&probs)[kOutMTiles][4]) {
    const uint32_t v_lane =
        v_shared(stage_) + Tile::lane_offset(lane()) + static_cast<uint32_t>(2 * out_column());
#pragma unroll
    for (int d = 0; d < kDTiles; d += 2) {
      uint32_t b[4];
      ptx::ldmatrix_x4_transposed(
          b, v_lane + static_cast<uint32_t>(16 * k * Tile::kRowBytes + 16 * d));
#pragma unroll
      for (int m = 0; m < kOutMTiles; ++m) {
        ptx::mma_m16n8k16<Element>(out[m][d], probs[m], b[0], b[1]);
        ptx::mma_m16n8k16<Element>(out[m][d + 1], probs[m], b[2], b[3]);
      }
    }
  }
  __device__ __forceinline__ void add_product() {
    uint32_t probs[kPSteps][kOutMTiles][4];
#pragma unroll
    for (int k = 0; k < kPSteps; ++k) {
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) probs_of(m, k, probs[k][m]);
    }
#pragma unroll
    for (int k = 0; k < kPSteps; ++k) add_fragment(k, probs[k]);
  }

  // The same where the other warp of the pair has half of the rows: P and alpha are exchanged. The
  // block's next barrier keeps the next tile's from overtaking.
  __device__ __forceinline__ void add_paired_product(const float (&alpha)[2], bool rescales) {
    using Probs = typename Config::Probs;
    unsigned char* shared = shared_ + Config::kSharedBytes - Config::kProbsBytes;
    uint32_t own[kPSteps][4];
#pragma unroll
    for (int k = 0; k < kPSteps; ++k) {
      probs_of(0, k, own[k]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<uint32_t*>(shared + row_of(0, i % 2) * Probs::kRowBytes + 32 * k +
                                     16 * (i / 2) + 4 * (lane() % 4)) = own[k][i];
      }
    }
    if (lane() % 4 < 2) {
      row_values_[row_of(0, lane() % 4)] = lane() % 2 == 0 ? alpha[0] : alpha[1];
    }
    ptx::pair_barrier(1 + first_row() / 32);
    const float other_alpha[2] = {row_values_[out_row_of(1, 0)], row_values_[out_row_of(1, 1)]};
    if (rescales) rescale(out[0], alpha);
    if (__any_sync(0xffffffffu, other_alpha[0] != 1 || other_alpha[1] != 1)) {
      rescale(out[1], other_alpha);
    }
    const uint32_t other = ptx::shared_address(shared) + Probs::lane_offset(lane()) +
                           static_cast<uint32_t>((warp_row ^ 16) * Probs::kRowBytes);
#pragma unroll
    for (int k = 0; k < kPSteps; ++k) {
      uint32_t probs[kOutMTiles][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) probs[0][i] = own[k][i];
      ptx::ldmatrix_x4(probs[kOutMTiles - 1], other + static_cast<uint32_t>(32 * k));
      add_fragment(k, probs);
    }
  }

  __device__ __forceinline__ bool update_states(float (&alpha)[kMTiles][2]) {
    if (natural()) return update_states(alpha, Natural<Element>{});
    return update_states(alpha, LogTwo<Element>{a.scale_log2});
  }
  template <class Units>
  __device__ __forceinline__ bool update_states(float (&alpha)[kMTiles][2], const Units& units) {
    const bool rescales = states.move(scores, alpha, units);
    if (!Config::kPaired && rescales) {
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) rescale(out[m], alpha[m]);
    }
    states.weigh(scores, units);
    return rescales;
  }

  // A sum of many tiles drifts if added up one by one: sums of groups of tiles are added up in
  // shared memory. Groups are counted from key 0, too.
  __device__ __forceinline__ void close_group() {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        totals_[2 * m + h][threadIdx.x] = {total_sum(m, h), states.reference[m][h]};
        states.sum[m][h] = 0;
      }
    }
  }
  // Sum of all groups, in units of the current reference.
  __device__ __forceinline__ float total_sum(int m, int h) const {
    const float2 total = totals_[2 * m + h][threadIdx.x];
    if (total.y == kMinusInfinity<float>) return states.sum[m][h];
    const float from = total.y;
    const float to = states.reference[m][h];
    const float alpha = natural() ? Natural<Element>{}.alpha(from, to)
                                  : LogTwo<Element>{a.scale_log2}.alpha(from, to);
    return __fmaf_rn(total.x, alpha, states.sum[m][h]);
  }

  // ---------------------------------------------------------------- masks of positions

  __device__ __forceinline__ void set_warp_keys(const BlockContext& c) {
    const int warp_rows = min(c.rows - first_row(), kSharedRows);
    WarpKeys keys{0, 0, 0, 0};
    if (warp_rows > 0) {
      const int first = c.row_begin + first_row();
      const int last = first + warp_rows - 1;
      keys = {c.visibility.lo(first), c.visibility.hi(last), c.visibility.lo(last),
              c.visibility.hi(first)};
    }
    if (lane() == 0) warp_keys_ = keys;
    __syncwarp();
  }
  __device__ __forceinline__ bool warp_sees(int tile) const {
    const int key_begin = tile * kKvTile;
    return key_begin < warp_keys_.some_end && (key_begin + kKvTile > warp_keys_.some_begin ||
                                               key_begin < late_.visibility.sink_tokens);
  }
  __device__ __forceinline__ bool warp_sees_all(int key_begin) const {
    return key_begin >= warp_keys_.all_begin && key_begin + kKvTile <= warp_keys_.all_end;
  }

  __device__ __forceinline__ void hide_invisible(int key_begin) {
    const int first = key_begin + 2 * (lane() % 4);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int q = late_.row_begin + row_of(m, h);
        const RowFilter keys{late_.visibility.lo(q) - first, late_.visibility.hi(q) - first,
                             late_.visibility.sink_tokens - first};
#pragma unroll
        for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = scores[m][n][2 * h + e];
            x = keys.keep(8 * n + e) ? x : kMinusInfinity<float>;
          }
        }
      }
    }
  }

  // ---------------------------------------------------------------- everything else

  __device__ __forceinline__ void prepare_features() {
    data_mask = policy::data_mask_of(p, late_.s, late_.head);
    score.scale = static_cast<float>(p.scale);
    score.softcap = static_cast<float>(p.softcap);
    if (p.alibi_slopes.present()) {
      score.alibi_slope = load_scalar<float>(
          p.alibi_slopes.dtype, p.alibi_slopes.pointer,
          late_.s.batch * p.alibi_slopes.batch + late_.head * p.alibi_slopes.head);
    }
    dropout = policy::dropout_of(p);
  }

  __device__ __forceinline__ bool masked_by_data() const {
    return data_mask.active() || p.bias.present();
  }

  // Dot products become scores; those of invisible pairs -inf.
  __device__ __forceinline__ void apply_features(int key_begin, bool partial) {
    if (masked_by_data()) find_suspicious();
    if (natural()) {
      if (p.softcap > 0) {
        apply_score<true, false>(key_begin);
      } else {
        apply_score<false, false>(key_begin);
      }
      if (p.bias.present()) add_bias(key_begin);
      if (p.alibi_slopes.present()) apply_score<false, true>(key_begin);
    }
    if (partial) hide_invisible(key_begin);
    if (data_mask.segment_q != nullptr) hide_other_segments(key_begin);
    if (data_mask.mask != nullptr) hide_masked(key_begin);
  }

  // A row's first key of this lane, and row, for each pair of columns 8 n of each row:
  // body(m, h, n, q).
  template <class Body>
  __device__ __forceinline__ void for_each_pair(Body&& body) {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int q = late_.row_begin + min(row_of(m, h), late_.rows - 1);
#pragma unroll
        for (int n = 0; n < kNTiles; ++n) body(m, h, n, q);
      }
    }
  }

  // A dot product that is not finite where it may be all that a row sees: recompute_rows() tells
  // overflow, NaN and a masked pair apart.
  __device__ __forceinline__ void find_suspicious() {
    float probe = 0;
    for_each_pair([&](int m, int h, int n, int) {
      probe = __fmaf_rn(scores[m][n][2 * h], 0.0f, probe);
      probe = __fmaf_rn(scores[m][n][2 * h + 1], 0.0f, probe);
    });
    suspicious |= probe != 0.0f;
  }

  // One step of policy::Score: scale and softcap, or ALiBi.
  template <bool kSoftcap, bool kAlibi>
  __device__ __forceinline__ void apply_score(int key_begin) {
    policy::Score<float> step = score;
    step.has_softcap = kSoftcap;
    step.has_bias = false;
    step.has_alibi = kAlibi;
    if (kAlibi) step.scale = 1;
    const int64_t first = key_begin + 2 * (lane() % 4) - late_.s.offset;
    for_each_pair([&](int m, int h, int n, int q) {
      const float diagonal = static_cast<float>(q - first);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = scores[m][n][2 * h + e];
        x = step.forward(x, fabsf(diagonal - static_cast<float>(8 * n + e)), 0.0f);
      }
    });
  }

  __device__ __forceinline__ void add_bias(int key_begin) {
    const int64_t at = late_.s.batch * p.bias.batch + late_.head * p.bias.head;
    if (p.bias.dtype == RUNMAX_F32) {
      add_bias(static_cast<const float*>(p.bias.pointer) + at, key_begin);
    } else {
      add_bias(static_cast<const Element*>(p.bias.pointer) + at, key_begin);
    }
  }
  template <class Stored>
  __device__ __forceinline__ void add_bias(const Stored* bias, int key_begin) {
    policy::Score<float> step{};
    step.scale = 1;
    step.has_bias = true;
    for_each_two(bias, p.bias.row, p.bias.column, key_begin, [&](float& x, Stored stored) {
      const float b = to_float(stored);
      const float sum = step.forward(x, 0.0f, b);
      suspicious |=
          sum == kMinusInfinity<float> && b != kMinusInfinity<float> && x != kMinusInfinity<float>;
      x = sum;
    });
  }

  __device__ __forceinline__ void hide_masked(int key_begin) {
    for_each_two(data_mask.mask, data_mask.mask_q_stride, data_mask.mask_kv_stride, key_begin,
                 [&](float& x, uint8_t keep) { x = keep != 0 ? x : kMinusInfinity<float>; });
  }

  __device__ __forceinline__ void hide_other_segments(int key_begin) {
    const int32_t* row_segments =
        data_mask.segment_q + late_.row_begin * data_mask.segment_q_stride;
    int32_t own[kMTiles][2];
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        own[m][h] = row_segments[min(row_of(m, h), late_.rows - 1) * data_mask.segment_q_stride];
      }
    }
    const int first = key_begin + 2 * (lane() % 4);
    const int last = late_.visibility.kv_len - 1;
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = min(first + 8 * n + e, last);
        const int32_t segment = data_mask.segment_kv[key * data_mask.segment_kv_stride];
#pragma unroll
        for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            float& x = scores[m][n][2 * h + e];
            x = segment == own[m][h] ? x : kMinusInfinity<float>;
          }
        }
      }
    }
  }

  // body(score, element) for the elements (q, key) of a matrix of pairs; a lane's two neighbours
  // are read at once where addresses allow. Elements past the last key are not read.
  template <class Stored, class Body>
  __device__ __forceinline__ void for_each_two(const Stored* matrix, int64_t row_stride,
                                               int64_t column_stride, int key_begin, Body&& body) {
    struct alignas(2 * sizeof(Stored)) Two {
      Stored x[2];
    };
    const int first = key_begin + 2 * (lane() % 4);
    const int left = late_.visibility.kv_len - first;
    const bool pairs = column_stride == 1 && row_stride % 2 == 0 &&
                       reinterpret_cast<uintptr_t>(matrix) % sizeof(Two) == 0;
    for_each_pair([&](int m, int h, int n, int q) {
      const Stored* at = matrix + q * row_stride + (first + 8 * n) * column_stride;
      Two two{};
      if (pairs && 8 * n + 1 < left) {
        two = *reinterpret_cast<const Two*>(at);
      } else {
        if (8 * n < left) two.x[0] = at[0];
        if (8 * n + 1 < left) two.x[1] = at[column_stride];
      }
      body(scores[m][n][2 * h], two.x[0]);
      body(scores[m][n][2 * h + 1], two.x[1]);
    });
  }

  // Weights that dropout does not keep become 0. The even lane of a pair draws the words of four
  // keys for row h = 0, the odd one for row h = 1; each takes the two of its keys from both.
  __device__ __forceinline__ void drop(int key_begin) {
    if (!dropout.active) return;
    const uint32_t batch_head = static_cast<uint32_t>(late_.s.batch * p.q_heads + late_.head);
    const bool odd = lane() % 2 != 0;
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      const uint32_t q = static_cast<uint32_t>(late_.row_begin + row_of(m, odd ? 1 : 0));
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
        const uint32_t quad =
            static_cast<uint32_t>(key_begin + 8 * n) / 4 + static_cast<uint32_t>(lane() % 4 / 2);
        const PhiloxBlock block = dropout.words(batch_head, q, quad);
        // Words 0, 1 are the even lane's keys, 2, 3 the odd lane's.
        const uint32_t mine0 = odd ? block.word[2] : block.word[0];
        const uint32_t mine1 = odd ? block.word[3] : block.word[1];
        const uint32_t other0 =
            __shfl_xor_sync(0xffffffffu, odd ? block.word[0] : block.word[2], 1);
        const uint32_t other1 =
            __shfl_xor_sync(0xffffffffu, odd ? block.word[1] : block.word[3], 1);
        const uint32_t words[4] = {odd ? other0 : mine0, odd ? other1 : mine1, odd ? mine0 : other0,
                                   odd ? mine1 : other1};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!dropout.keep(words[i])) scores[m][n][i] = 0;
        }
      }
    }
  }

  // ---------------------------------------------------------------- the end

  // Does row q see a key of [late_.kv_begin, late_.kv_end)?
  __device__ __forceinline__ bool row_seen(int m, int h) const {
    if constexpr (Config::kFeatures) {
      // All that is left of a row whose every pair is masked; see find_suspicious().
      if (masked_by_data()) return states.reference[m][h] != kMinusInfinity<float>;
    }
    const int q = late_.row_begin + row_of(m, h);
    const int hi = min(late_.visibility.hi(q), late_.kv_end);
    return late_.kv_begin < hi &&
           (late_.visibility.lo(q) < hi || late_.kv_begin < late_.visibility.sink_tokens);
  }

  // Writes every row of the block. True: the block must be recomputed, and nothing was written of
  // rows in use.
  __device__ __forceinline__ bool finish() {
    bool bad = false;
    if constexpr (Config::kFeatures) {
      bad = suspicious;
    }
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float sum = quad_sum(total_sum(m, h));
        states.sum[m][h] = sum;
        const bool unset = states.reference[m][h] == kMinusInfinity<float> && row_seen(m, h);
        bad |= row_of(m, h) < late_.rows && (!finite(sum) || unset);
      }
    }
#pragma unroll
    for (int m = 0; m < kOutMTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float probe = 0;  // NaN if anything is not finite
#pragma unroll
        for (int d = 0; d < kDTiles; ++d) {
          probe = __fmaf_rn(out[m][d][2 * h], 0.0f, probe);
          probe = __fmaf_rn(out[m][d][2 * h + 1], 0.0f, probe);
        }
        bad |= out_row_of(m, h) < late_.rows && probe != 0.0f;
      }
    }
    bad = __syncthreads_or(bad);
    if (p.num_splits > 1) {
      if (!bad) store_partial();
      return bad;
    }
    store_result(bad);
    return bad;
  }

  __device__ __forceinline__ float natural_reference(int m, int h) const {
    const float reference = states.reference[m][h];
    return natural() ? reference : reference * kLn2;
  }

  __device__ __forceinline__ void store_partial() {
    const auto partial = [&](int row) {
      return partial_row<float>(p, late_.s, late_.head, late_.row_begin + row, late_.split);
    };
    float keep_scale = 1.0f;  // what merges the parts knows nothing of dropout
    if constexpr (Config::kFeatures) {
      if (dropout.active) keep_scale = static_cast<float>(p.dropout.keep_scale);
    }
#pragma unroll
    for (int m = 0; m < kOutMTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = out_row_of(m, h);
        if (row >= late_.rows) continue;
        float* to = partial(row);
        const int column = out_column() + 2 * (lane() % 4);
#pragma unroll
        for (int d = 0; d < kDTiles; ++d) {
          if (8 * d + column < p.head_dim_v) {
            *reinterpret_cast<float2*>(to + 8 * d + column) =
                make_float2(out[m][d][2 * h] * keep_scale, out[m][d][2 * h + 1] * keep_scale);
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row_of(m, h);
        if (row >= late_.rows || lane() % 4 != 0) continue;
        float* extra = partial(row) + partial_columns<float>(p.head_dim_v);
        extra[0] = natural_reference(m, h);
        extra[1] = states.sum[m][h];
        extra[2] = row_seen(m, h) ? 1.0f : 0.0f;
      }
    }
  }

  static __device__ __noinline__ Finished<float> finished_with_sink(const ForwardParams& p,
                                                                    int64_t head, double reference,
                                                                    float sum, bool seen) {
    const float sink = load_scalar<float>(p.sink.dtype, p.sink.pointer, head * p.sink.head);
    const auto end = finish_row<double>(reference, sum, seen, true, sink);
    const float lse = static_cast<float>(end.lse);
    return {static_cast<float>(end.out_scale), lse,
            finite(lse) ? static_cast<float>(end.lse - lse) : 0.0f};
  }

  // lse and lse_lo of a row, and what its acc is multiplied with.
  __device__ __forceinline__ Finished<float> finished(int m, int h) const {
    const float reference = states.reference[m][h];
    const float sum = states.sum[m][h];
    const bool seen = row_seen(m, h);
    if (p.sink.present()) {
      return finished_with_sink(
          p, late_.head, natural() ? reference : reference * 0.69314718055994530942, sum, seen);
    }
    if (!seen) return {0.0f, kMinusInfinity<float>, 0.0f};
    // lse = top + log(sum) with what the roundings lose; in units of log 2 where the reference is,
    // so that a sum which is a power of two gives the exact result.
    const float log_sum = natural() ? logf(sum) : log2f(sum);
    const float total = __fadd_rn(reference, log_sum);
    const float added = __fsub_rn(total, reference);
    const float lost =
        __fadd_rn(__fsub_rn(reference, __fsub_rn(total, added)), __fsub_rn(log_sum, added));
    float high = total;
    float low = lost;
    if (!natural()) {
      high = __fmul_rn(total, kLn2);
      low = __fmaf_rn(lost, kLn2, __fmaf_rn(total, kLn2Rest, __fmaf_rn(total, kLn2, -high)));
    }
    const float lse = __fadd_rn(high, low);
    return {__frcp_rn(sum), lse, __fadd_rn(__fsub_rn(high, lse), low)};
  }

  __device__ __forceinline__ void store_statistic(const Operand& to, int row, float x) const {
    if (!to.present()) return;
    static_cast<float*>(to.pointer)[policy::q_row_offset(to, late_.s, late_.head, row)] = x;
  }

  __device__ __forceinline__ void store_result(bool bad) {
    const int rows_to = p.keep_unused ? late_.rows : late_.storage_rows;
    const int rows_from = bad ? late_.rows : 0;  // the others are written by recompute_rows()
    float out_scale[kOutMTiles][2];
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row_of(m, h);
        Finished<float> end{0.0f, kMinusInfinity<float>, 0.0f};
        if (row < late_.rows && !bad) end = finished(m, h);
        if (lane() % 4 == 0 && row >= rows_from && row < rows_to) {
          store_statistic(p.lse, late_.row_begin + row, end.lse);
          store_statistic(p.lse_lo, late_.row_begin + row, end.lse_lo);
        }
        if constexpr (Config::kFeatures) {
          if (dropout.active) end.out_scale *= static_cast<float>(p.dropout.keep_scale);
        }
        out_scale[m][h] = end.out_scale;
        if (Config::kPaired && lane() % 4 == 0) row_values_[row] = end.out_scale;
      }
    }
    if constexpr (Config::kPaired) {
      __syncthreads();
#pragma unroll
      for (int h = 0; h < 2; ++h) out_scale[1][h] = row_values_[out_row_of(1, h)];
    }
    // Adding 0 turns -0, which an underflow can leave, into the +0 of every other path.
#pragma unroll
    for (int m = 0; m < kOutMTiles; ++m) {
#pragma unroll
      for (int d = 0; d < kDTiles; ++d) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool used = out_row_of(m, i / 2) < late_.rows;
          out[m][d][i] = used ? __fmaf_rn(out[m][d][i], out_scale[m][i / 2], 0.0f) : 0.0f;
        }
      }
    }
    if (a.wide_stores) {
      store_wide(rows_from, rows_to);
    } else {
      store_elements(rows_from, rows_to);
    }
  }

  // Through the shared memory of this warp's part of Q, in pieces of 16 bytes.
  __device__ __forceinline__ void store_wide(int rows_from, int rows_to) {
    unsigned char* staging = shared_ + 2 * out_column();
#pragma unroll
    for (int m = 0; m < kOutMTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        unsigned char* row = staging + out_row_of(m, h) * Tile::kRowBytes;
#pragma unroll
        for (int d = 0; d < kDTiles; ++d) {
          *reinterpret_cast<uint32_t*>(row + 16 * d + 4 * (lane() % 4)) =
              ptx::pack<Element>(out[m][d][2 * h], out[m][d][2 * h + 1]);
        }
      }
    }
    __syncwarp();
    Element* base = static_cast<Element*>(p.out.pointer) +
                    policy::q_row_offset(p.out, late_.s, late_.head, late_.row_begin);
#pragma unroll
    for (int i = 0; i < kSharedRows * kDTiles / 32; ++i) {
      const int index = 32 * i + lane();
      const int row = first_row() + index / kDTiles;
      const int unit = index % kDTiles;
      const int column = out_column() + unit * 8;
      if (row >= rows_from && row < rows_to && column < p.head_dim_v) {
        *reinterpret_cast<uint4*>(base + row * p.out.row + column) =
            *reinterpret_cast<const uint4*>(staging + row * Tile::kRowBytes + unit * 16);
      }
    }
  }

  __device__ __forceinline__ void store_elements(int rows_from, int rows_to) {
#pragma unroll
    for (int m = 0; m < kOutMTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = out_row_of(m, h);
        if (row < rows_from || row >= rows_to) continue;
        const int64_t to = policy::q_row_offset(p.out, late_.s, late_.head, late_.row_begin + row);
#pragma unroll
        for (int d = 0; d < kDTiles; ++d) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int column = out_column() + 8 * d + 2 * (lane() % 4) + e;
            if (column >= p.head_dim_v) continue;
            const float x = out[m][d][2 * h + e];
            const int64_t at = to + column * p.out.column;
            if (p.out.dtype == RUNMAX_F32) {
              static_cast<float*>(p.out.pointer)[at] = x;
            } else {
              static_cast<Element*>(p.out.pointer)[at] = round_to<Element>(x);
            }
          }
        }
      }
    }
  }

  const ForwardArgs& a;
  const ForwardParams& p;
  unsigned char* shared_;
  const BlockContext& late_;
  WarpKeys& warp_keys_;
  Totals* const totals_;     // of the rows that this thread holds
  float* const row_values_;  // one per row of the block, for exchange
  int warp_row;              // first row of this warp, in the block
  int tile_;                 // at work
  int stage_;                // where it lies

  float out[kOutMTiles][kDTiles][4];
  float scores[kMTiles][kNTiles][4];
  RowStates<kMTiles> states;
  uint32_t q_fragments[kMTiles][Config::kQInRegisters ? kKSteps : 1][4];

  // kFeatures only
  policy::DataMask data_mask{};
  policy::Score<float> score{};
  policy::Dropout dropout{};
  bool suspicious = false;
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    forward(const __grid_constant__ ForwardArgs args) {
  extern __shared__ __align__(16) unsigned char shared[];
  const uint64_t number = blockIdx.x + static_cast<uint64_t>(blockIdx.y) * gridDim.x;
  const ForwardParams& p = args.p;
  if (number >= static_cast<uint64_t>(item_count(p))) return;
  __shared__ BlockContext late;
  __shared__ WarpKeys warp_keys[Config::kWarps];
  const BlockContext context = context_of<typename Config::Element>(
      p, decode(args, number), Config::kQTile, Config::kKvTile,
      args.async_copies && p.head_dim == Config::kHeadDim && p.head_dim_v == Config::kHeadDim);
  if (context.storage_rows == 0) return;
  if (threadIdx.x == 0) late = context;
  __syncthreads();
  __shared__ typename ForwardBlock<Config>::Totals totals[2 * Config::kMTiles];
  __shared__ float row_values[Config::kPaired ? Config::kQTile : 1];
  ForwardBlock<Config> block(args, shared, late, warp_keys[threadIdx.x / 32], totals, row_values);
  block.run(context);
}

}  // namespace runmax::cuda::sm80
