// Every rule of check_args(), each by one change to good arguments.
#include "core/args.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <vector>

#include "core/problem.h"
#include "core/tensor.h"
#include "tests/unit/allocations.h"
#include "tests/unit/problems.h"

namespace runmax {
namespace {

using testing::backward_problem;
using testing::forward_problem;
using testing::merge_problem;
using testing::packed_problem;

// Arguments with memory of their own for every operand of a problem.
class Arguments {
 public:
  explicit Arguments(const runmax_problem& p) : problem_(p) {
    args.struct_size = sizeof args;
    args.q = place(p.q);
    args.k = place(p.k);
    args.v = place(p.v);
    args.out = place(p.out);
    args.lse = place(p.lse);
    args.lse_lo = place(p.lse_lo);
    args.bias = place(p.bias);
    args.mask = place(p.mask);
    args.alibi_slopes = place(p.alibi_slopes);
    args.sink = place(p.sink);
    args.seqused_q = seqused_q = integers(p.seqused_q);
    args.seqused_kv = seqused_kv = integers(p.seqused_kv);
    args.prefix_len = prefix_len = integers(p.prefix_len);
    args.diagonal_offset = integers(p.diagonal_offset);
    args.segment_ids_q = integers(p.segment_ids_q);
    args.segment_ids_kv = integers(p.segment_ids_kv);
    args.cu_seqlens_q = cu_seqlens_q = integers(p.cu_seqlens_q);
    args.cu_seqlens_kv = cu_seqlens_kv = integers(p.cu_seqlens_kv);
    args.block_index = block_index = integers(p.block_index);
    args.d_out = place(p.d_out);
    args.d_lse = place(p.d_lse);
    args.d_q = place(p.d_q);
    args.d_k = place(p.d_k);
    args.d_v = place(p.d_v);
    args.d_bias = place(p.d_bias);
    args.d_sink = place(p.d_sink);
    args.d_alibi_slopes = place(p.d_alibi_slopes);
    args.partial_out = place(p.partial_out);
    args.partial_lse = place(p.partial_lse);
    if (cu_seqlens_q != nullptr) {
      const int32_t starts_q[] = {0, 5, 5, 11};
      const int32_t starts_kv[] = {0, 2, 10, 12};
      std::memcpy(cu_seqlens_q, starts_q, sizeof starts_q);
      std::memcpy(cu_seqlens_kv, starts_kv, sizeof starts_kv);
    }
  }

  Status check(bool read_index_data = true) const {
    const Result<Problem> problem = validate(problem_);
    EXPECT_TRUE(problem.is_ok()) << problem.status().message();
    return check_args(problem.value(), args, read_index_data);
  }

  runmax_args args{};
  int32_t *seqused_q, *seqused_kv, *prefix_len, *cu_seqlens_q, *cu_seqlens_kv, *block_index;

 private:
  void* place(const runmax_tensor& tensor) {
    const ByteExtent extent = byte_extent(tensor);
    if (extent.end == 0) return nullptr;
    memory_.emplace_back(static_cast<size_t>(extent.end + 63) / 64);
    return memory_.back().data();
  }
  int32_t* integers(const runmax_tensor& tensor) { return static_cast<int32_t*>(place(tensor)); }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  runmax_problem problem_;
  std::vector<std::vector<Line>> memory_;
};

struct Refusal {
  runmax_problem (*make)();
  std::function<void(Arguments&)> change;
  const char* field;
  const char* text;
};

const std::vector<Refusal> kRefusals = {
    {forward_problem, [](Arguments& a) { a.args.struct_size = 0; }, "struct_size", "is 0"},
    {forward_problem, [](Arguments& a) { a.args.struct_size -= 8; }, "struct_size",
     "must be sizeof"},
    {forward_problem, [](Arguments& a) { a.args.reserved = 1; }, "reserved", "is 1, must be 0"},
    {forward_problem, [](Arguments& a) { a.args.q = nullptr; }, "q",
     "is NULL, must point to the tensor's 240 elements"},
    {forward_problem, [](Arguments& a) { a.args.out = nullptr; }, "out", "is NULL"},
    {forward_problem, [](Arguments& a) { a.args.block_index = nullptr; }, "block_index", "is NULL"},
    {backward_problem, [](Arguments& a) { a.args.d_k = nullptr; }, "d_k", "is NULL"},
    {merge_problem, [](Arguments& a) { a.args.partial_lse = nullptr; }, "partial_lse", "is NULL"},
    {forward_problem, [](Arguments& a) { a.args.k = static_cast<const char*>(a.args.k) + 2; }, "k",
     "is 2 bytes past a multiple of 4"},

    // Overlap.
    {forward_problem, [](Arguments& a) { a.args.lse = a.args.out; }, "out",
     "shares elements with lse"},
    {forward_problem, [](Arguments& a) { a.args.out = const_cast<void*>(a.args.q); }, "out",
     "shares elements with q"},
    {forward_problem, [](Arguments& a) { a.args.lse = a.seqused_q; }, "lse",
     "shares elements with seqused_q"},
    {backward_problem, [](Arguments& a) { a.args.d_v = static_cast<float*>(a.args.d_k) + 1; },
     "d_k", "shares elements with d_v"},
    {backward_problem, [](Arguments& a) { a.args.d_q = a.args.out; }, "d_q",
     "shares elements with out"},

    // Random numbers.
    {forward_problem,
     [](Arguments& a) {
       static uint64_t seed;
       a.args.seed_pointer = &seed;
       a.args.seed = 7;
     },
     "seed_pointer", "is set beside seed (7)"},
    {forward_problem,
     [](Arguments& a) {
       static uint64_t seed;
       a.args.offset_pointer = &seed;
       a.args.offset = 1;
     },
     "offset_pointer", "is set beside offset (1)"},
    {forward_problem,
     [](Arguments& a) { a.args.seed_pointer = reinterpret_cast<const uint64_t*>(12); },
     "seed_pointer", "aligned to 8 bytes"},

    // Index data.
    {forward_problem, [](Arguments& a) { a.seqused_kv[1] = 8; }, "seqused_kv[1]",
     "is 8, must be in [0, 7]"},
    {forward_problem, [](Arguments& a) { a.seqused_kv[0] = -1; }, "seqused_kv[0]",
     "is -1, must be in [0, 7]"},
    {forward_problem, [](Arguments& a) { a.seqused_q[1] = 6; }, "seqused_q[1]",
     "is 6, must be in [0, 5]"},
    {forward_problem, [](Arguments& a) { a.prefix_len[1] = -1; }, "prefix_len[1]",
     "is -1, must be at least 0"},
    {forward_problem,
     [](Arguments& a) { a.seqused_q[1] = 3, a.block_index[((1 * 3 + 2) * 3 + 1) * 2 + 1] = 3; },
     "block_index[1, 2, 1, 1]", "is 3, must be less than 3"},
    {packed_problem, [](Arguments& a) { a.cu_seqlens_q[0] = 1; }, "cu_seqlens_q[0]",
     "is 1, must be 0"},
    {packed_problem, [](Arguments& a) { a.cu_seqlens_kv[0] = -1; }, "cu_seqlens_kv[0]",
     "is -1, must be 0"},
    {packed_problem, [](Arguments& a) { a.cu_seqlens_q[2] = 4; }, "cu_seqlens_q[2]",
     "is 4, must be at least 5 (cu_seqlens_q[1])"},
    {packed_problem, [](Arguments& a) { a.cu_seqlens_kv[3] = 14; }, "cu_seqlens_kv[3]",
     "is 14, must be at most 13 (the total)"},
    {packed_problem, [](Arguments& a) { a.cu_seqlens_q[1] = a.cu_seqlens_q[2] = 7; },
     "cu_seqlens_q[1]", "is 7, must be at most 6 (max_q_len after cu_seqlens_q[0])"},
    {packed_problem, [](Arguments& a) { a.seqused_q[1] = 1; }, "seqused_q[1]",
     "is 1, must be in [0, 0]"},
    {packed_problem, [](Arguments& a) { a.seqused_kv[2] = 3; }, "seqused_kv[2]",
     "is 3, must be in [0, 2]"},
    // Sequence 0 has 2 keys: one block of 3. Sequence 2 begins at q block 3.
    {packed_problem, [](Arguments& a) { a.seqused_q[0] = 5, a.block_index[(0 * 7 + 2) * 2] = 1; },
     "block_index[0, 2, 0]", "is 1, must be less than 1"},
    {packed_problem,
     [](Arguments& a) { a.seqused_q[2] = 1, a.block_index[(5 * 7 + 3) * 2 + 1] = 9; },
     "block_index[5, 3, 1]", "is 9, must be less than 1"},
    {[] {
       runmax_problem p = packed_problem();
       p.block_index = make_tensor(RUNMAX_I32, {6, 5, 2});
       return p;
     },
     [](Arguments&) {}, "block_index.shape[1]", "is 5, must be at least 6 (the q blocks"},
    {[] {
       runmax_problem p = packed_problem();
       p.bias = make_tensor(RUNMAX_F32, {1, 6, 6, 7});
       p.max_kv_len = 0;
       return p;
     },
     [](Arguments&) {}, "bias.shape[3]",
     "is 7, must be 1 or at least 8 (the length of sequence 1)"},
};

TEST(Args, RefusesEachRuleByFieldAndReason) {
  int number = 0;
  for (const Refusal& refusal : kRefusals) {
    Arguments arguments(refusal.make());
    refusal.change(arguments);
    const Status status = arguments.check();
    ASSERT_FALSE(status.is_ok()) << "case " << number << ": " << refusal.field;
    EXPECT_EQ(status.code(), RUNMAX_INVALID_ARGUMENT);
    EXPECT_EQ(status.field(), refusal.field) << status.message();
    EXPECT_NE(status.message().find(refusal.text), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("must"), std::string::npos) << status.message();
    ++number;
  }
}

TEST(Args, AcceptsGoodOnes) {
  for (const auto make : {forward_problem, backward_problem, packed_problem, merge_problem}) {
    const Arguments arguments(make());
    const Status status = arguments.check();
    EXPECT_TRUE(status.is_ok()) << status.message();
  }
}

TEST(Args, AllocatesNothingForGoodOnes) {
  for (const auto make : {forward_problem, backward_problem, packed_problem, merge_problem}) {
    const runmax_problem raw = make();
    const Arguments arguments(raw);
    const Problem problem = validate(raw).value();
    const int64_t before = testing::allocations();
    const bool good = check_args(problem, arguments.args, true).is_ok();
    EXPECT_EQ(testing::allocations(), before);
    EXPECT_TRUE(good);
  }
}

TEST(Args, DeviceResidentIndexDataIsNotRead) {
  Arguments arguments(packed_problem());
  arguments.args.cu_seqlens_q = reinterpret_cast<const int32_t*>(64);
  arguments.args.block_index = reinterpret_cast<const int32_t*>(4096);
  EXPECT_TRUE(arguments.check(false).is_ok()) << arguments.check(false).message();
}

TEST(Args, AcceptsInterleavedGradients) {
  runmax_problem p = backward_problem();
  p.v = make_tensor(RUNMAX_F32, {2, 3, 7, 4});
  p.out = p.d_out = make_tensor(RUNMAX_F32, {2, 6, 5, 4});
  p.d_v = p.d_k = make_tensor(RUNMAX_F32, {2, 3, 7, 4});
  const int64_t stride[] = {7 * 2 * 12, 4, 2 * 12, 1};  // [batch, len, (k, v), heads, dim]
  std::memcpy(p.d_k.stride, stride, sizeof stride);
  std::memcpy(p.d_v.stride, stride, sizeof stride);
  Arguments arguments(p);
  std::vector<float> buffer(2 * 7 * 2 * 12);
  arguments.args.d_k = buffer.data();
  arguments.args.d_v = buffer.data() + 12;
  EXPECT_TRUE(arguments.check().is_ok()) << arguments.check().message();
  arguments.args.d_v = buffer.data() + 11;
  EXPECT_EQ(arguments.check().field(), "d_k");
}

TEST(Args, ViewsOfInputsMayOverlap) {
  runmax_problem p = forward_problem();
  p.v = p.k;
  p.v.shape[3] = 3;  // v is a view of k
  p.out = make_tensor(RUNMAX_F32, {2, 6, 5, 3});
  Arguments arguments(p);
  arguments.args.v = arguments.args.k;
  EXPECT_TRUE(arguments.check().is_ok()) << arguments.check().message();
}

TEST(Args, PromisedAlignmentIsHeld) {
  runmax_problem p = forward_problem();
  p.q.min_alignment = 32;
  Arguments arguments(p);
  EXPECT_TRUE(arguments.check().is_ok());
  std::vector<float> buffer(512);
  auto address = reinterpret_cast<uintptr_t>(buffer.data());
  address += (32 - address % 32) % 32 + 4;
  arguments.args.q = reinterpret_cast<const void*>(address);
  EXPECT_EQ(arguments.check().message(),
            "q: is 4 bytes past a multiple of 32, must be aligned to 32 bytes");
}

TEST(Args, EmptyTensorsNeedNoPointer) {
  runmax_problem p{};
  p.struct_size = sizeof p;
  p.q = p.out = make_tensor(RUNMAX_F32, {2, 6, 5, 4});
  p.k = p.v = make_tensor(RUNMAX_F32, {2, 3, 0, 4});
  const Arguments arguments(p);
  EXPECT_EQ(arguments.args.k, nullptr);
  EXPECT_TRUE(arguments.check().is_ok()) << arguments.check().message();
}

TEST(Args, BlocksOfUnusedRowsAndNegativeEntriesAreSkipped) {
  Arguments arguments(forward_problem());
  arguments.seqused_q[0] = 2;  // one block of two rows
  arguments.seqused_q[1] = 5;
  arguments.block_index[0] = -7;
  arguments.block_index[2] = 1000;  // the second block of rows: none of them in use
  EXPECT_TRUE(arguments.check().is_ok()) << arguments.check().message();
  arguments.seqused_q[0] = 3;
  EXPECT_EQ(arguments.check().field(), "block_index[0, 0, 1, 0]");
}

TEST(Args, StridedIndexTensorsAreReadByStride) {
  runmax_problem p = forward_problem();
  p.seqused_kv.stride[0] = 3;
  Arguments arguments(p);
  arguments.seqused_kv[1] = arguments.seqused_kv[2] = 99;  // between the elements
  EXPECT_TRUE(arguments.check().is_ok()) << arguments.check().message();
  arguments.seqused_kv[3] = 99;
  EXPECT_EQ(arguments.check().field(), "seqused_kv[1]");
}

}  // namespace
}  // namespace runmax
