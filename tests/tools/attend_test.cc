// `runmax attend` on files of every kind, held against the float64 oracle by the same gates as the
// kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "input_files.h"
#include "run_command.h"
#include "testing/run.h"

namespace runmax::testing {
namespace {

enum class Format { kSafetensors, kSafetensorsBshd, kNpy, kNpyFortran };

// Poison is no part of a file that a user would write, but hidden and unused data may be.
const char* const kProblems[] = {
    "q_heads=2 q_len=5 kv_len=9 head_dim=8",
    "dtype=bf16 batch=2 q_heads=4 kv_heads=2 q_len=33 kv_len=130 head_dim=16 causal",
    "dtype=f16 q_heads=2 q_len=17 kv_len=40 head_dim=12 head_dim_v=5 causal align=top_left",
    "dtype=f64 q_heads=2 q_len=7 kv_len=12 head_dim=4 sink alibi",
    "batch=2 q_heads=2 q_len=9 kv_len=30 window=3,-1 sink_tokens=2 softcap=5 scale=-0.5",
    "batch=2 q_heads=2 q_len=6 kv_len=11 head_dim=8 bias=1hqk mask=b11k sink alibi=bh",
    "batch=3 q_heads=2 q_len=6 kv_len=11 head_dim=8 seqused_q=6,0,3 seqused_kv=11,4,0",
    "batch=2 q_heads=2 q_len=6 kv_len=11 head_dim=8 causal diagonal_offset=-2,3 prefix_len=1,4",
    "batch=2 q_heads=2 q_len=12 kv_len=12 head_dim=8 segments=3",
    "packed batch=3 q_heads=4 kv_heads=2 head_dim=8 q_len=9 kv_len=20 causal "
    "cu_seqlens_q=0,9,9,12 cu_seqlens_kv=0,4,9,29",
    "q_heads=4 kv_heads=2 q_len=40 kv_len=70 head_dim=8 block_size=16,8 block_heads=kv",
    "packed batch=2 q_heads=2 head_dim=8 q_len=7 kv_len=9 segments=2 bias=1hqk seqused_kv=4,9 "
    "cu_seqlens_q=0,7,10 cu_seqlens_kv=0,9,18",
    "batch=2 q_heads=2 q_len=9 kv_len=30 head_dim=8 dropout=0.25 seed=7 offset=12345678901",
    "q_heads=2 q_len=3 kv_len=0 head_dim=8",
    "q_heads=2 q_len=0 kv_len=3 head_dim=8",
    "batch=2 q_heads=1 q_len=40 kv_len=300 head_dim=8 causal batch_invariant deterministic "
    "threads=3"};

void adopt(const StoredTensor& tensor, std::vector<std::byte>& into,
           const runmax_tensor& expected) {
  int64_t bytes = size_of(expected.dtype);
  for (int d = 0; d < expected.rank; ++d) bytes *= expected.shape[d];
  ASSERT_EQ(static_cast<int64_t>(tensor.bytes.size()), bytes);
  into.resize(tensor.bytes.size());
  if (!into.empty()) std::memcpy(into.data(), tensor.bytes.data(), into.size());
}

class Attend : public ::testing::TestWithParam<std::tuple<const char*, Format>> {};

TEST_P(Attend, EqualsTheOracle) {
  const auto [text, format] = GetParam();
  SCOPED_TRACE(text);
  Case c(text);
  const bool packed = c.spec().packed;
  const bool swapped = format == Format::kSafetensorsBshd;
  const bool npy = format == Format::kNpy || format == Format::kNpyFortran;
  const TemporaryFolder folder;
  std::vector<std::string> arguments = {"attend"};
  const std::vector<StoredTensor> inputs = stored_inputs(c, swapped && !packed);
  if (npy) {
    for (const StoredTensor& input : inputs) {
      std::string flag = "--" + input.name;
      std::replace(flag.begin(), flag.end(), '_', '-');
      write_bytes(folder.path(input.name), npy_bytes(input, format == Format::kNpyFortran));
      arguments.insert(arguments.end(), {flag, folder.path(input.name)});
    }
    arguments.insert(arguments.end(), {"--out", folder.path("OUT"), "--lse", folder.path("LSE"),
                                       "--lse-lo", folder.path("LSE_LO")});
  } else {
    write_bytes(folder.path("IN"), safetensors_bytes(inputs));
    arguments.insert(arguments.end(), {folder.path("IN"), folder.path("OUT")});
    if (swapped) arguments.insert(arguments.end(), {"--layout", packed ? "thd" : "bshd"});
  }
  for (const std::string& flag : flags_of(c.spec())) arguments.push_back(flag);
  const CommandResult result = run_command(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");

  // The file's tensors as the results of the case.
  runmax_problem problem = c.problem();
  runmax_args args = c.args();
  problem.lse_lo = problem.lse;  // the command always writes it
  OutputCopy copy(problem, args);
  const std::string bytes = npy ? "" : read_bytes(folder.path("OUT"));
  const auto read = [&](const char* tensor, const char* file) {
    return npy ? read_npy_tensor(read_bytes(folder.path(file))) : read_safetensor(bytes, tensor);
  };
  const StoredTensor out = read("out", "OUT");
  const StoredTensor lse = read("lse", "LSE");
  adopt(lse, copy.lse, copy.problem.lse);
  adopt(read("lse_lo", "LSE_LO"), copy.lse_lo, copy.problem.lse_lo);
  adopt(out, copy.out, copy.problem.out);
  std::vector<int64_t> shape(problem.out.shape, problem.out.shape + problem.out.rank);
  if (swapped && !packed) {
    std::swap(shape[1], shape[2]);
    runmax_tensor& tensor = copy.problem.out;
    tensor.stride[1] = tensor.shape[3];
    tensor.stride[2] = tensor.shape[1] * tensor.shape[3];
  }
  EXPECT_EQ(out.shape, shape);
  EXPECT_EQ(lse.shape,
            std::vector<int64_t>(problem.lse.shape, problem.lse.shape + problem.lse.rank));
  copy.args.out = copy.out.data();
  copy.args.lse = copy.lse.data();
  copy.args.lse_lo = copy.lse_lo.data();
  const Comparison comparison = compare_all(copy.problem, copy.args, expected(problem, args));
  EXPECT_TRUE(comparison.passed) << comparison.message;
}

INSTANTIATE_TEST_SUITE_P(Safetensors, Attend,
                         ::testing::Combine(::testing::ValuesIn(kProblems),
                                            ::testing::Values(Format::kSafetensors,
                                                              Format::kSafetensorsBshd)));
std::vector<const char*> without_bf16() {
  std::vector<const char*> problems;
  for (const char* text : kProblems) {
    if (std::strstr(text, "bf16") == nullptr) problems.push_back(text);
  }
  return problems;
}
INSTANTIATE_TEST_SUITE_P(Npy, Attend,
                         ::testing::Combine(::testing::ValuesIn(without_bf16()),
                                            ::testing::Values(Format::kNpy, Format::kNpyFortran)));

// Weight 1/2 each on two keys: a result that needs no oracle.
TEST(AttendByHand, MeanOfTwoValues) {
  const TemporaryFolder folder;
  write_bytes(folder.path("IN"), safetensors_bytes({f32_tensor("q", {1, 1, 1, 2}, {0, 0}),
                                                    f32_tensor("k", {1, 1, 2, 2}, {1, 2, 3, 4}),
                                                    f32_tensor("v", {1, 1, 2, 1}, {10, 20})}));
  const CommandResult result = run_command({"attend", folder.path("IN"), folder.path("OUT")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string bytes = read_bytes(folder.path("OUT"));
  float out = 0;
  float lse = 0;
  std::memcpy(&out, read_safetensor(bytes, "out").bytes.data(), 4);
  std::memcpy(&lse, read_safetensor(bytes, "lse").bytes.data(), 4);
  EXPECT_EQ(out, 15.0f);
  EXPECT_NEAR(lse, 0.6931472f, 1e-7f);
}

// Small F32 vectors beside an F64 problem are widened.
TEST(AttendByHand, F32SinkBesideF64) {
  const TemporaryFolder folder;
  const auto f64 = [](const char* name, std::vector<int64_t> shape, std::vector<double> values) {
    return StoredTensor{name, "F64", std::move(shape),
                        std::string(reinterpret_cast<char*>(values.data()), values.size() * 8)};
  };
  write_bytes(folder.path("IN"),
              safetensors_bytes({f64("q", {1, 1, 1, 1}, {0}), f64("k", {1, 1, 1, 1}, {1}),
                                 f64("v", {1, 1, 1, 1}, {8}), f32_tensor("sink", {1}, {0})}));
  const CommandResult result = run_command({"attend", folder.path("IN"), folder.path("OUT")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  double out = 0;
  std::memcpy(&out, read_safetensor(read_bytes(folder.path("OUT")), "out").bytes.data(), 8);
  EXPECT_EQ(out, 4.0);
}

// A bias of fewer dimensions broadcasts as in NumPy.
TEST(AttendByHand, BiasOfTwoDimensions) {
  const TemporaryFolder folder;
  write_bytes(folder.path("IN"),
              safetensors_bytes({f32_tensor("q", {1, 1, 2, 1}, {0, 0}),
                                 f32_tensor("k", {1, 1, 2, 1}, {1, 2}),
                                 f32_tensor("v", {1, 1, 2, 1}, {10, 20}),
                                 f32_tensor("bias", {2, 2}, {0, -INFINITY, -INFINITY, 0})}));
  const CommandResult result = run_command({"attend", folder.path("IN"), folder.path("OUT")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  float out[2] = {};
  std::memcpy(out, read_safetensor(read_bytes(folder.path("OUT")), "out").bytes.data(), 8);
  EXPECT_EQ(out[0], 10.0f);
  EXPECT_EQ(out[1], 20.0f);
}

TEST(AttendText, SaysWhatItWroteUnlessQuiet) {
  const TemporaryFolder folder;
  write_bytes(folder.path("IN"),
              safetensors_bytes({f32_filled("q", {1, 2, 3, 4}), f32_filled("k", {1, 2, 5, 4}),
                                 f32_filled("v", {1, 2, 5, 4})}));
  const std::vector<std::string> base = {"attend", folder.path("IN"), folder.path("OUT")};
  EXPECT_NE(run_command(base).out.find("[1, 2, 3, 4]"), std::string::npos);
  std::vector<std::string> quiet = base;
  quiet.push_back("--quiet");
  EXPECT_EQ(run_command(quiet).out, "");
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"IN", "OUT"}));
}

}  // namespace
}  // namespace runmax::testing
