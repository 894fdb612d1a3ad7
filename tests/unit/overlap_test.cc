// The overlap search against listing every byte of every element.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace runmax {
namespace {

constexpr runmax_dtype kTypes[] = {RUNMAX_BOOL, RUNMAX_F16, RUNMAX_F32, RUNMAX_F64};

const void* at(int64_t address) { return reinterpret_cast<const void*>(address); }

// Calls visit(byte address of the element) for every index.
template <class Visit>
void for_each_element(const runmax_tensor& tensor, int64_t base, Visit visit) {
  const int64_t count = element_count(tensor);
  for (int64_t flat = 0; flat < count; ++flat) {
    int64_t rest = flat;
    int64_t address = base;
    for (int i = tensor.rank - 1; i >= 0; --i) {
      address += rest % tensor.shape[i] * tensor.stride[i] * dtype_size(tensor.dtype);
      rest /= tensor.shape[i];
    }
    visit(address);
  }
}

bool brute_force_share(const runmax_tensor& a, int64_t a_base, const runmax_tensor& b,
                       int64_t b_base) {
  std::set<int64_t> bytes;
  for_each_element(a, a_base, [&](int64_t address) {
    for (int64_t i = 0; i < dtype_size(a.dtype); ++i) bytes.insert(address + i);
  });
  bool shared = false;
  for_each_element(b, b_base, [&](int64_t address) {
    for (int64_t i = 0; i < dtype_size(b.dtype); ++i) shared |= bytes.count(address + i) != 0;
  });
  return shared;
}

bool brute_force_overlaps_itself(const runmax_tensor& tensor) {
  std::set<int64_t> seen;
  bool twice = false;
  for_each_element(tensor, 0, [&](int64_t address) { twice |= !seen.insert(address).second; });
  return twice;
}

std::string describe(const runmax_tensor& t) {
  std::ostringstream text;
  text << dtype_name(t.dtype);
  for (int i = 0; i < t.rank; ++i) text << ' ' << t.shape[i] << '*' << t.stride[i];
  return text.str();
}

class RandomTensors {
 public:
  runmax_tensor next(int64_t max_stride) {
    runmax_tensor tensor{};
    tensor.dtype = kTypes[pick(0, 3)];
    tensor.rank = static_cast<int32_t>(pick(1, 4));
    for (int i = 0; i < tensor.rank; ++i) {
      tensor.shape[i] = pick(0, 9) == 0 ? 0 : pick(1, 5);
      tensor.stride[i] = pick(-max_stride, max_stride);
    }
    return tensor;
  }
  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

 private:
  std::mt19937_64 random_{20261129};
};

TEST(Overlap, ShareElementsAgreesWithBruteForce) {
  RandomTensors random;
  int yes = 0;
  int no = 0;
  for (int round = 0; round < 20000; ++round) {
    const runmax_tensor a = random.next(round % 2 == 0 ? 8 : 40);
    const runmax_tensor b = random.next(round % 3 == 0 ? 8 : 40);
    const int64_t a_base = 1 << 20;
    const int64_t b_base = a_base + random.pick(-60, 60);
    const bool expected = brute_force_share(a, a_base, b, b_base);
    ASSERT_EQ(share_elements(a, at(a_base), b, at(b_base)), expected)
        << describe(a) << " | " << describe(b) << " | " << b_base - a_base;
    ASSERT_EQ(share_elements(b, at(b_base), a, at(a_base)), expected);
    ++(expected ? yes : no);
  }
  EXPECT_GT(yes, 1000);
  EXPECT_GT(no, 1000);
}

// Shared strides with different offsets: where extents overlap and elements mostly do not.
TEST(Overlap, InterleavedTensorsAgreeWithBruteForce) {
  RandomTensors random;
  int meets_but_apart = 0;
  for (int round = 0; round < 20000; ++round) {
    runmax_tensor a = random.next(24);
    runmax_tensor b = a;
    for (int i = 0; i < a.rank; ++i) b.shape[i] = std::max<int64_t>(1, a.shape[i]);
    a = b;
    b.shape[0] = random.pick(1, 5);
    const int64_t a_base = 1 << 20;
    const int64_t b_base = a_base + random.pick(-8, 8) * dtype_size(a.dtype);
    const bool expected = brute_force_share(a, a_base, b, b_base);
    ASSERT_EQ(share_elements(a, at(a_base), b, at(b_base)), expected)
        << describe(a) << " | " << describe(b) << " | " << b_base - a_base;
    const ByteExtent ea = byte_extent(a);
    const ByteExtent eb = byte_extent(b);
    const int64_t shift = b_base - a_base;
    const bool extents_meet = ea.end > shift + eb.begin && shift + eb.end > ea.begin;
    meets_but_apart += extents_meet && !expected;
  }
  EXPECT_GT(meets_but_apart, 1000);
}

TEST(Overlap, OverlapsItselfAgreesWithBruteForce) {
  RandomTensors random;
  int yes = 0;
  int no = 0;
  for (int round = 0; round < 20000; ++round) {
    const runmax_tensor tensor = random.next(round % 2 == 0 ? 12 : 60);
    const bool expected = brute_force_overlaps_itself(tensor);
    ASSERT_EQ(overlaps_itself(tensor), expected) << describe(tensor);
    ++(expected ? yes : no);
  }
  EXPECT_GT(yes, 1000);
  EXPECT_GT(no, 1000);
}

TEST(Overlap, GradientsInterleavedInOneBuffer) {
  // [batch 3, len 100, 3 of (q, k, v), heads 8, dim 64]
  runmax_tensor d_q = make_tensor(RUNMAX_BF16, {3, 8, 100, 64});
  const int64_t token = 3 * 8 * 64;
  d_q.stride[0] = 100 * token;
  d_q.stride[1] = 64;
  d_q.stride[2] = token;
  d_q.stride[3] = 1;
  const int64_t base = 1 << 20;
  const int64_t step = 8 * 64 * 2;
  EXPECT_FALSE(overlaps_itself(d_q));
  EXPECT_FALSE(share_elements(d_q, at(base), d_q, at(base + step)));
  EXPECT_FALSE(share_elements(d_q, at(base), d_q, at(base + 2 * step)));
  EXPECT_TRUE(share_elements(d_q, at(base), d_q, at(base + step - 2)));  // one element too early
  EXPECT_TRUE(share_elements(d_q, at(base), d_q, at(base + step - 1)));  // half of one
  EXPECT_TRUE(share_elements(d_q, at(base), d_q, at(base + 3 * step)));  // the next token's
}

TEST(Overlap, LargeTensorsAreDecidedAtOnce) {
  runmax_tensor a = make_tensor(RUNMAX_F32, {1 << 10, 1 << 10, 1 << 10});
  for (int64_t& stride : a.stride) stride *= 2;
  const int64_t base = int64_t{1} << 30;
  EXPECT_FALSE(overlaps_itself(a));
  EXPECT_FALSE(share_elements(a, at(base), a, at(base + 4)));
  EXPECT_TRUE(share_elements(a, at(base), a, at(base + 8)));
  EXPECT_TRUE(share_elements(a, at(base), a, at(base + 3)));
}

TEST(Overlap, WildAddressesDoNotOverflow) {
  const runmax_tensor a = make_tensor(RUNMAX_F32, {4});
  EXPECT_FALSE(share_elements(a, at(16), a, reinterpret_cast<const void*>(~uintptr_t{15})));
  EXPECT_FALSE(share_elements(a, reinterpret_cast<const void*>(~uintptr_t{15}), a, at(16)));
}

// Not decided within the bound on work: refused, and quickly.
TEST(Overlap, UndecidedCountsAsShared) {
  runmax_tensor a{};
  a.dtype = RUNMAX_BOOL;
  a.rank = 6;
  // Strides without a common divisor whose sums nearly fill the range: nothing prunes.
  const int64_t strides[] = {1000003, 1000033, 1000037, 1000039, 1000081, 1000099};
  for (int i = 0; i < 6; ++i) {
    a.shape[i] = 40;
    a.stride[i] = strides[i];
  }
  runmax_tensor b = make_tensor(RUNMAX_BOOL, {1});
  const int64_t base = int64_t{1} << 32;
  // 500000 past a multiple of about 10^6 is out of reach of sums of at most 234 strides.
  EXPECT_FALSE(share_elements(a, at(base), b, at(base + 500000)));
  EXPECT_TRUE(share_elements(a, at(base), b, at(base + 100 * 1000003 + 500000)));
}

TEST(Overlap, EmptyTensorsShareNothing) {
  const runmax_tensor empty = make_tensor(RUNMAX_F32, {4, 0});
  const runmax_tensor a = make_tensor(RUNMAX_F32, {4});
  EXPECT_FALSE(share_elements(empty, at(64), a, at(64)));
  EXPECT_FALSE(share_elements(a, at(64), runmax_tensor{}, at(64)));
  EXPECT_FALSE(overlaps_itself(empty));
}

TEST(Tensor, SizesNamesAndExtents) {
  EXPECT_EQ(dtype_size(RUNMAX_BF16), 2);
  EXPECT_EQ(dtype_size(RUNMAX_F8_E4M3), 0);
  EXPECT_EQ(dtype_size(99), 0);
  EXPECT_STREQ(dtype_name(RUNMAX_F8_E5M2), "F8_E5M2");
  EXPECT_STREQ(dtype_name(99), "?");
  runmax_tensor t = make_tensor(RUNMAX_F32, {2, 3, 4});
  EXPECT_EQ(t.stride[0], 12);
  EXPECT_EQ(t.stride[2], 1);
  EXPECT_EQ(element_count(t), 24);
  EXPECT_EQ(element_count(runmax_tensor{}), 0);
  t.stride[0] = -12;
  EXPECT_EQ(byte_extent(t).begin, -48);
  EXPECT_EQ(byte_extent(t).end, 48);
}

}  // namespace
}  // namespace runmax
