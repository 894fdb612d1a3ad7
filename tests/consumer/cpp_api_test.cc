// The C++ interface (runmax.hpp): views describe what they are given, owners own, errors are
// values.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "runmax/runmax.hpp"

namespace {

using runmax::Attention;
using runmax::Buffer;
using runmax::Device;
using runmax::Plan;
using runmax::Problem;
using runmax::Result;
using runmax::Status;
using runmax::TensorView;

// One head, keys zero: every visible key weighs the same, so that out is the mean of the visible v.
struct Small {
  std::vector<float> q = {1, -2, 3, -4, 5, -6, 7, -8};            // [1, 1, 2, 4]
  std::vector<float> k = std::vector<float>(12);                  // [1, 1, 3, 4]
  std::vector<float> v = {3, 6, 9, 12, 0, 3, 0, 3, 0, 0, 0, 3};   // [1, 1, 3, 4]
  std::vector<float> out = std::vector<float>(8, std::nanf(""));  // [1, 1, 2, 4]
  std::vector<float> lse = std::vector<float>(2, std::nanf(""));  // [1, 1, 2]

  Problem problem() {
    return {.q = TensorView(q, {1, 1, 2, 4}),
            .k = TensorView(k, {1, 1, 3, 4}),
            .v = TensorView(v, {1, 1, 3, 4}),
            .out = TensorView(out, {1, 1, 2, 4}),
            .lse = TensorView(lse, {1, 1, 2})};
  }
  void expect_rows(std::array<float, 4> first, std::array<float, 4> second) const {
    for (size_t d = 0; d < 4; ++d) {
      EXPECT_NEAR(out[d], first[d], 1e-6F) << d;
      EXPECT_NEAR(out[4 + d], second[d], 1e-6F) << d;
    }
  }
};
constexpr std::array<float, 4> kMeanOfTwo = {1.5F, 4.5F, 4.5F, 7.5F};
constexpr std::array<float, 4> kMeanOfThree = {1, 3, 3, 6};

TEST(TensorView, IsContiguousUnlessToldOtherwise) {
  float data[24];
  const TensorView<float> view(data, {2, 3, 4});
  EXPECT_EQ(view.tensor().dtype, RUNMAX_F32);
  EXPECT_EQ(view.tensor().rank, 3);
  EXPECT_EQ(view.tensor().shape[2], 4);
  EXPECT_EQ(view.tensor().stride[0], 12);
  EXPECT_EQ(view.tensor().stride[1], 4);
  EXPECT_EQ(view.tensor().stride[2], 1);
  const TensorView<float> strided(data, {2, 3}, {-8, 0});
  EXPECT_EQ(strided.tensor().stride[0], -8);
  EXPECT_EQ(strided.tensor().stride[1], 0);
}

TEST(TensorView, AgreesWithTheCInterface) {
  double data[6];
  const int64_t shape[] = {1, 2, 3};
  runmax_tensor tensor;
  ASSERT_EQ(runmax_tensor_init(&tensor, RUNMAX_F64, 3, shape), RUNMAX_OK);
  EXPECT_EQ(std::memcmp(&tensor, &TensorView(data, {1, 2, 3}).tensor(), sizeof tensor), 0);
}

TEST(TensorView, PermutesDimensions) {
  float data[24];
  const runmax_tensor tensor = TensorView(data, {1, 2, 3, 4}).permute({0, 2, 1, 3}).tensor();
  EXPECT_EQ(tensor.shape[1], 3);
  EXPECT_EQ(tensor.shape[2], 2);
  EXPECT_EQ(tensor.stride[1], 4);
  EXPECT_EQ(tensor.stride[2], 12);
}

TEST(TensorView, DeducesItsElementType) {
  const std::vector<float> constant(4);
  std::array<double, 4> doubles{};
  std::vector<runmax::bf16> halves(4);
  std::vector<int32_t> integers(4);
  static_assert(std::is_same_v<decltype(TensorView(constant, {4})), TensorView<const float>>);
  static_assert(std::is_same_v<decltype(TensorView(doubles, {4})), TensorView<double>>);
  static_assert(std::is_same_v<decltype(TensorView(std::span(doubles), {4})), TensorView<double>>);
  EXPECT_EQ(TensorView(halves, {4}).tensor().dtype, RUNMAX_BF16);
  EXPECT_EQ(TensorView(integers, {4}).tensor().dtype, RUNMAX_I32);
  // What is read only cannot be written to.
  static_assert(!std::is_convertible_v<TensorView<const float>, runmax::Output>);
  static_assert(std::is_convertible_v<TensorView<const float>, runmax::Input>);
  static_assert(std::is_convertible_v<TensorView<float>, runmax::Input>);
}

TEST(Problem, SetsABitForEveryFieldWhoseZeroHasAMeaning) {
  EXPECT_EQ(Problem{}.describe().present, 0u);
  const runmax_problem problem =
      Problem{
          .causal = true, .scale = 0.0, .window_left = 0, .window_right = 7, .keep_unused = true}
          .describe();
  EXPECT_EQ(problem.present,
            RUNMAX_PRESENT_SCALE | RUNMAX_PRESENT_WINDOW_LEFT | RUNMAX_PRESENT_WINDOW_RIGHT);
  EXPECT_EQ(problem.window_right, 7);
  EXPECT_EQ(problem.flags, RUNMAX_CAUSAL | RUNMAX_KEEP_UNUSED);
}

// Every operand reaches its own place in both C structs: a slip of the long list would show.
TEST(Problem, PutsEveryOperandInItsPlace) {
  float f[64];
  int32_t i[64];
  const auto input = [&](int64_t n) { return runmax::Input(TensorView<const float>(f + n, {n})); };
  const auto output = [&](int64_t n) { return runmax::Output(TensorView<float>(f + n, {n})); };
  const auto index = [&](int64_t n) { return runmax::Input(TensorView<int32_t>(i + n, {n})); };
  Problem p;
  p.q = input(1), p.k = input(2), p.v = input(3), p.out = output(4), p.lse = output(5);
  p.lse_lo = output(6), p.bias = input(7), p.mask = input(8), p.alibi_slopes = input(9);
  p.sink = input(10), p.seqused_q = index(11), p.seqused_kv = index(12), p.prefix_len = index(13);
  p.diagonal_offset = index(14), p.segment_ids_q = index(15), p.segment_ids_kv = index(16);
  p.cu_seqlens_q = index(17), p.cu_seqlens_kv = index(18), p.block_index = index(19);
  p.d_out = input(20), p.d_lse = input(21), p.d_q = output(22), p.d_k = output(23);
  p.d_v = output(24), p.d_bias = output(25), p.d_sink = output(26), p.d_alibi_slopes = output(27);
  p.partial_out = input(28), p.partial_lse = input(29), p.d_partial_out = output(30);
  p.d_partial_lse = output(31);
  const runmax_problem c = p.describe();
  const runmax_args a = p.args();
#define EXPECT_PLACE(field, n, base) \
  EXPECT_EQ(c.field.shape[0], n);    \
  EXPECT_EQ(a.field, static_cast<const void*>((base) + (n)))
  EXPECT_PLACE(q, 1, f);
  EXPECT_PLACE(k, 2, f);
  EXPECT_PLACE(v, 3, f);
  EXPECT_PLACE(out, 4, f);
  EXPECT_PLACE(lse, 5, f);
  EXPECT_PLACE(lse_lo, 6, f);
  EXPECT_PLACE(bias, 7, f);
  EXPECT_PLACE(mask, 8, f);
  EXPECT_PLACE(alibi_slopes, 9, f);
  EXPECT_PLACE(sink, 10, f);
  EXPECT_PLACE(seqused_q, 11, i);
  EXPECT_PLACE(seqused_kv, 12, i);
  EXPECT_PLACE(prefix_len, 13, i);
  EXPECT_PLACE(diagonal_offset, 14, i);
  EXPECT_PLACE(segment_ids_q, 15, i);
  EXPECT_PLACE(segment_ids_kv, 16, i);
  EXPECT_PLACE(cu_seqlens_q, 17, i);
  EXPECT_PLACE(cu_seqlens_kv, 18, i);
  EXPECT_PLACE(block_index, 19, i);
  EXPECT_PLACE(d_out, 20, f);
  EXPECT_PLACE(d_lse, 21, f);
  EXPECT_PLACE(d_q, 22, f);
  EXPECT_PLACE(d_k, 23, f);
  EXPECT_PLACE(d_v, 24, f);
  EXPECT_PLACE(d_bias, 25, f);
  EXPECT_PLACE(d_sink, 26, f);
  EXPECT_PLACE(d_alibi_slopes, 27, f);
  EXPECT_PLACE(partial_out, 28, f);
  EXPECT_PLACE(partial_lse, 29, f);
  EXPECT_PLACE(d_partial_out, 30, f);
  EXPECT_PLACE(d_partial_lse, 31, f);
#undef EXPECT_PLACE
}

TEST(Attention, OneCall) {
  Small small;
  const Status status = runmax::attention(small.problem());
  ASSERT_TRUE(status) << status.message();
  small.expect_rows(kMeanOfThree, kMeanOfThree);
  EXPECT_NEAR(small.lse[0], std::log(3.0), 1e-6);
}

TEST(Attention, OneCallWithOptions) {
  Small small;
  const Problem p = small.problem();
  const Status status = runmax::attention(p.q, p.k, p.v, p.out, {.causal = true});
  ASSERT_TRUE(status) << status.message();
  small.expect_rows(kMeanOfTwo, kMeanOfThree);
}

TEST(Attention, PlansAgainWhenTheProblemChanges) {
  const Result<Device> device = Device::create({.max_threads = 2});
  ASSERT_TRUE(device) << device.status().message();
  Attention attend(*device);
  Small small;
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const bool causal : {false, true, true}) {
      small.out.assign(8, std::nanf(""));
      Problem problem = small.problem();
      problem.causal = causal;
      ASSERT_TRUE(attend(problem));
      small.expect_rows(causal ? kMeanOfTwo : kMeanOfThree, kMeanOfThree);
    }
  }
  // A forced kernel that does not exist is not answered from the plan of the call before.
  Problem problem = small.problem();
  problem.causal = true;
  problem.kernel = "no_such_kernel";
  EXPECT_FALSE(attend(problem));
}

TEST(Attention, IsCalledFromSeveralThreads) {
  std::vector<std::thread> threads;
  std::array<Small, 4> smalls;
  std::array<bool, 4> good{};
  for (size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { good[i] = runmax::attention(smalls[i].problem()).ok(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(good[i]);
    smalls[i].expect_rows(kMeanOfThree, kMeanOfThree);
  }
}

TEST(Plan, ExecutesWithAWorkspaceOfTheCaller) {
  Small small;
  Result<Device> made = Device::create();
  ASSERT_TRUE(made) << made.status().message();
  const Device device = std::move(*made);
  ASSERT_TRUE(device.supports(small.problem()));
  const Result<Plan> plan = Plan::create(small.problem(), device);
  ASSERT_TRUE(plan) << plan.status().message();
  const Result<Buffer> workspace = Buffer::create(device, plan->workspace_size());
  ASSERT_TRUE(workspace) << workspace.status().message();
  ASSERT_TRUE(plan->check(small.problem()));
  ASSERT_TRUE(plan->execute(small.problem(), *workspace));
  small.expect_rows(kMeanOfThree, kMeanOfThree);
  EXPECT_EQ(plan->info().value().visible_pairs, 6u);
  EXPECT_NE(std::string(plan->explain()), "");
  EXPECT_NE(std::string(device.info().value().name), "");
}

TEST(Errors, NameTheField) {
  Small small;
  Problem problem = small.problem();
  problem.scale = std::numeric_limits<double>::quiet_NaN();
  const Status status = runmax::attention(problem);
  EXPECT_EQ(status.code(), RUNMAX_INVALID_ARGUMENT);
  EXPECT_EQ(status.field(), "scale");
  EXPECT_EQ(status.message().find("scale: "), 0u) << status.message();
  EXPECT_EQ(runmax::validate(problem).code(), RUNMAX_INVALID_ARGUMENT);
  EXPECT_TRUE(std::isnan(small.out[0]));  // nothing was written
}

TEST(Errors, AContainerTooSmallForItsShapeIsRefused) {
  Small small;
  Problem problem = small.problem();
  small.out.resize(7);
  problem.out = TensorView(small.out, {1, 1, 2, 4});
  const Status status = runmax::attention(problem);
  EXPECT_EQ(status.code(), RUNMAX_INVALID_ARGUMENT);
  EXPECT_EQ(status.field(), "out");
  problem = small.problem();
  problem.q = TensorView(small.q, {int64_t{1} << 62, int64_t{1} << 62, 4, 4});
  EXPECT_EQ(runmax::attention(problem).code(), RUNMAX_INVALID_ARGUMENT);
}

TEST(Errors, AWrongRankIsRefused) {
  Small small;
  Problem problem = small.problem();
  problem.q = TensorView(small.q.data(), {1, 1, 1, 1, 1, 1, 2, 4});  // beyond what fits a tensor
  EXPECT_EQ(runmax::attention(problem).code(), RUNMAX_INVALID_ARGUMENT);
  const TensorView q(small.q, {1, 1, 2, 4});
  for (const auto& no_permutation : {q.permute({0, 1, 2}), q.permute({0, 1, 2, 4}),
                                     q.permute({0, 1, 2, -1}), q.permute({0, 0, 2, 3})}) {
    problem.q = no_permutation;
    EXPECT_EQ(runmax::attention(problem).code(), RUNMAX_INVALID_ARGUMENT);
  }
}

TEST(Errors, ValueThrowsWhatStatusSays) {
  const Result<Device> none = Device::create({.kind = 99});
  ASSERT_FALSE(none);
  try {
    none.value();
    FAIL() << "did not throw";
  } catch (const runmax::Error& error) {
    EXPECT_EQ(error.status().code(), none.status().code());
    EXPECT_EQ(error.what(), none.status().message());
    EXPECT_NE(none.status().message(), "");
  }
}

}  // namespace
