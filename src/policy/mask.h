// Which keys a query row sees: the visibility rule of docs/numerics.md as arithmetic on positions.
//
// Per row the visible keys are an interval [lo(q), hi(q)) plus leading tokens [0, sink_tokens), all
// cut at hi(q). Both bounds never fall as q grows, so whole tiles are classified from their
// corners. Masks that are data (segments, boolean masks) are a predicate on top: DataMask.
#pragma once

#include <cstdint>
#include <limits>

#include "core/host_device.h"

namespace runmax::policy {

enum class TileClass : int32_t { skip, partial, full };

// Ranges of kv tiles that a block of rows visits: [0, leading_end) and [begin, end), with
// leading_end <= begin.
template <class Int>
struct TileRange {
  Int leading_end;
  Int begin;
  Int end;
};

// Int is signed and wide enough that lengths stay below a quarter of its range.
template <class Int>
struct Visibility {
  static constexpr Int kNoBound = std::numeric_limits<Int>::max() / 4;

  Int kv_len;        // keys in use; those from here on are invisible
  Int offset;        // position of query row 0 on the key axis
  Int window_left;   // >= 0, kNoBound = none
  Int window_right;  // >= 0, kNoBound = none; 0 when causal
  Int sink_tokens;   // >= 0
  Int prefix_len;    // >= 0

  // First key inside the window of row q (may lie outside [0, kv_len)).
  RUNMAX_INLINE Int lo(Int q) const {
    return window_left >= kNoBound ? Int{0} : max_of(q + offset - window_left, Int{0});
  }
  // One past the last visible key of row q, in [0, kv_len].
  RUNMAX_INLINE Int hi(Int q) const {
    if (window_right >= kNoBound) return kv_len;
    const Int window_end = q + offset + window_right + 1;
    return min_of(max_of(max_of(window_end, prefix_len), Int{0}), kv_len);
  }
  RUNMAX_INLINE bool keep(Int q, Int kv) const {
    return kv < hi(q) && (kv >= lo(q) || kv < sink_tokens);
  }
  RUNMAX_INLINE Int visible_keys(Int q) const {
    const Int end = hi(q);
    const Int leading = min_of(sink_tokens, end);
    return leading + max_of(end - max_of(lo(q), leading), Int{0});
  }

  // Rows [q_begin, q_end) x keys [kv_begin, kv_end), both non-empty. Exact: skip iff no pair is
  // visible, full iff all are.
  RUNMAX_INLINE TileClass classify(Int q_begin, Int q_end, Int kv_begin, Int kv_end) const {
    const Int last_hi = hi(q_end - 1);
    const bool meets_leading = kv_begin < min_of(sink_tokens, last_hi);
    const bool meets_window =
        kv_begin < last_hi && meets_some_window(q_begin, q_end, kv_begin, min_of(kv_end, kv_len));
    if (!meets_leading && !meets_window) return TileClass::skip;
    const Int last_lo = lo(q_end - 1);
    const bool below_hi = kv_end <= hi(q_begin);
    const bool above_lo = kv_begin >= last_lo || last_lo <= sink_tokens || kv_end <= sink_tokens;
    return below_hi && above_lo ? TileClass::full : TileClass::partial;
  }

  // kv tiles of `kv_tile` keys that rows [q_begin, q_end) may see; every other tile is `skip`.
  RUNMAX_INLINE TileRange<Int> tiles(Int q_begin, Int q_end, Int kv_tile) const {
    const Int last_hi = hi(q_end - 1);
    const Int first_lo = min_of(lo(q_begin), last_hi);
    const Int end = (last_hi + kv_tile - 1) / kv_tile;
    const Int begin = min_of(first_lo / kv_tile, end);
    const Int leading = (min_of(sink_tokens, last_hi) + kv_tile - 1) / kv_tile;
    return {min_of(leading, begin), begin, end};
  }

 private:
  static RUNMAX_INLINE constexpr Int min_of(Int a, Int b) { return a < b ? a : b; }
  static RUNMAX_INLINE constexpr Int max_of(Int a, Int b) { return a < b ? b : a; }

  // Does the window [lo, hi) of some row meet these keys? Both bounds rise with the row, so the
  // first row whose hi passes kv_begin decides: every later one starts further right.
  RUNMAX_INLINE bool meets_some_window(Int q_begin, Int q_end, Int kv_begin, Int kv_end) const {
    if (window_right >= kNoBound || prefix_len > kv_begin) return lo(q_begin) < kv_end;
    const Int first_row = max_of(kv_begin - offset - window_right, q_begin);
    return first_row < q_end && lo(first_row) < kv_end;
  }
};

// Clamps to what Int can add without overflow; kUnbounded becomes kNoBound.
template <class Int>
RUNMAX_INLINE Int clamp_position(int64_t value) {
  constexpr int64_t kLimit = Visibility<Int>::kNoBound;
  return static_cast<Int>(value > kLimit ? kLimit : (value < -kLimit ? -kLimit : value));
}

// Masks given as data, for one (batch entry, query head). Absent terms are null and see everything.
struct DataMask {
  const int32_t* segment_q;   // at row 0 of the sequence
  const int32_t* segment_kv;  // at key 0
  int64_t segment_q_stride;
  int64_t segment_kv_stride;
  const uint8_t* mask;  // at (row 0, key 0)
  int64_t mask_q_stride;
  int64_t mask_kv_stride;

  RUNMAX_INLINE bool active() const { return segment_q != nullptr || mask != nullptr; }
  RUNMAX_INLINE bool keep(int64_t q, int64_t kv) const {
    if (segment_q != nullptr &&
        segment_q[q * segment_q_stride] != segment_kv[kv * segment_kv_stride]) {
      return false;
    }
    return mask == nullptr || mask[q * mask_q_stride + kv * mask_kv_stride] != 0;
  }
};

}  // namespace runmax::policy
