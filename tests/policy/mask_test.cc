// The visibility policy against its definition, exhaustively for small lengths: the predicate, row
// bounds, counts, tile classes and tile ranges.
#include "policy/mask.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace runmax::policy {
namespace {

constexpr int kLongest = 9;

// docs/numerics.md, word for word; bounds below 0 mean "absent".
struct Definition {
  int kv_len, offset, window_left, window_right, sink_tokens, prefix_len;

  bool visible(int i, int j) const {
    if (j >= kv_len) return false;
    const bool left = window_left < 0 || j >= i + offset - window_left || j < sink_tokens;
    const bool right = window_right < 0 || j <= i + offset + window_right || j < prefix_len;
    return left && right;
  }
};

template <class Int>
Visibility<Int> visibility(const Definition& d) {
  using V = Visibility<Int>;
  return {static_cast<Int>(d.kv_len),
          static_cast<Int>(d.offset),
          d.window_left < 0 ? V::kNoBound : static_cast<Int>(d.window_left),
          d.window_right < 0 ? V::kNoBound : static_cast<Int>(d.window_right),
          static_cast<Int>(d.sink_tokens),
          static_cast<Int>(d.prefix_len)};
}

TileClass expected_class(const Definition& d, int q0, int q1, int k0, int k1) {
  int visible = 0;
  for (int i = q0; i < q1; ++i) {
    for (int j = k0; j < k1; ++j) visible += d.visible(i, j);
  }
  if (visible == 0) return TileClass::skip;
  return visible == (q1 - q0) * (k1 - k0) ? TileClass::full : TileClass::partial;
}

template <class Int>
void check_rows(const Definition& d, int q_len) {
  const Visibility<Int> v = visibility<Int>(d);
  for (int i = 0; i < q_len; ++i) {
    Int count = 0;
    for (int j = 0; j < d.kv_len + 3; ++j) {
      ASSERT_EQ(v.keep(i, j), d.visible(i, j)) << "row " << i << " key " << j;
      count += d.visible(i, j);
    }
    ASSERT_EQ(v.visible_keys(i), count) << "row " << i;
  }
}

template <class Int>
void check_tiles(const Definition& d, int q_len) {
  const Visibility<Int> v = visibility<Int>(d);
  for (int q_tile : {1, 2, 4}) {
    for (int kv_tile : {1, 2, 4}) {
      for (int q0 = 0; q0 < q_len; q0 += q_tile) {
        const int q1 = std::min(q0 + q_tile, q_len);
        const TileRange<Int> range = v.tiles(q0, q1, kv_tile);
        ASSERT_LE(range.leading_end, range.begin);
        for (int tile = 0; tile * kv_tile < d.kv_len; ++tile) {
          const int k0 = tile * kv_tile;
          const TileClass expected = expected_class(d, q0, q1, k0, k0 + kv_tile);
          ASSERT_EQ(v.classify(q0, q1, k0, k0 + kv_tile), expected)
              << "rows " << q0 << ".." << q1 << " keys " << k0 << "+" << kv_tile;
          const bool visited =
              tile < range.leading_end || (tile >= range.begin && tile < range.end);
          if (expected != TileClass::skip) {
            ASSERT_TRUE(visited) << "tile " << tile;
          }
        }
        ASSERT_LE((range.end - 1) * kv_tile, std::max(d.kv_len - 1, 0));
      }
    }
  }
}

template <class Int>
void check_all() {
  int64_t checked = 0;
  for (int q_len = 1; q_len <= kLongest; q_len += 2) {
    for (int kv_len = 0; kv_len <= kLongest; ++kv_len) {
      for (int offset : {kv_len - q_len, 0, -2, 3, -kLongest - 2, kLongest + 2}) {
        for (int left : {-1, 0, 1, 3, 20}) {
          for (int right : {-1, 0, 2, 20}) {
            for (int sink : {0, 1, 3, 20}) {
              for (int prefix : {0, 2, 5, 20}) {
                const Definition d{kv_len, offset, left, right, sink, prefix};
                SCOPED_TRACE(testing::Message()
                             << "q_len " << q_len << " kv_len " << kv_len << " offset " << offset
                             << " window " << left << "," << right << " sink_tokens " << sink
                             << " prefix_len " << prefix);
                check_rows<Int>(d, q_len);
                check_tiles<Int>(d, q_len);
                if (testing::Test::HasFatalFailure()) return;
                ++checked;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(checked, 5 * 10 * 6 * 5 * 4 * 4 * 4);
}

TEST(Visibility, AgreesWithTheDefinitionInInt64) { check_all<int64_t>(); }
TEST(Visibility, AgreesWithTheDefinitionInInt32) { check_all<int32_t>(); }

TEST(Visibility, BoundsAtTheLimitsDoNotOverflow) {
  using V = Visibility<int64_t>;
  const int64_t longest = int64_t{1} << 40;
  const V v{longest,
            -longest,
            clamp_position<int64_t>(INT64_MAX),
            clamp_position<int64_t>(0),
            clamp_position<int64_t>(INT64_MAX),
            0};
  EXPECT_EQ(v.lo(longest - 1), 0);
  EXPECT_EQ(v.hi(0), 0);
  EXPECT_EQ(v.hi(longest), 1);
  EXPECT_EQ(clamp_position<int32_t>(INT64_MAX), Visibility<int32_t>::kNoBound);
  EXPECT_EQ(clamp_position<int32_t>(INT64_MIN), -Visibility<int32_t>::kNoBound);
}

TEST(DataMask, AbsentTermsSeeEverythingAndPresentOnesCombine) {
  DataMask m{};
  EXPECT_FALSE(m.active());
  EXPECT_TRUE(m.keep(5, 7));
  const int32_t segment_q[] = {1, 0, 2, 0};  // every second element is a stranger
  const int32_t segment_kv[] = {2, 1, 1};
  m.segment_q = segment_q;
  m.segment_q_stride = 2;
  m.segment_kv = segment_kv;
  m.segment_kv_stride = 1;
  EXPECT_TRUE(m.active());
  EXPECT_FALSE(m.keep(0, 0));
  EXPECT_TRUE(m.keep(0, 1));
  EXPECT_TRUE(m.keep(1, 0));
  const uint8_t mask[] = {1, 0, 200, 1, 1, 1};
  m.mask = mask;
  m.mask_q_stride = 3;
  m.mask_kv_stride = 1;
  EXPECT_FALSE(m.keep(0, 1));  // same segment, masked
  EXPECT_TRUE(m.keep(0, 2));   // any non-zero byte is true
  EXPECT_FALSE(m.keep(0, 0));  // unmasked, other segment
}

}  // namespace
}  // namespace runmax::policy
