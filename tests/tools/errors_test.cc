// Every kind of bad input: one line that names the field, exit 2 (or 3), the output as it was.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "input_files.h"
#include "run_command.h"

namespace runmax::testing {
namespace {

const std::string kOld = "what was there before";

std::vector<StoredTensor> good() {
  return {f32_filled("q", {2, 4, 3, 8}), f32_filled("k", {2, 2, 5, 8}),
          f32_filled("v", {2, 2, 5, 6})};
}

std::vector<StoredTensor> good_and(StoredTensor extra) {
  std::vector<StoredTensor> tensors = good();
  tensors.push_back(std::move(extra));
  return tensors;
}

std::vector<StoredTensor> good_but(StoredTensor changed) {
  std::vector<StoredTensor> tensors = good();
  for (StoredTensor& tensor : tensors) {
    if (tensor.name == changed.name) tensor = changed;
  }
  return tensors;
}

// Runs attend on IN's bytes, once with OUT absent and once with an old OUT.
void expect_refused(const std::string& in, const std::string& field,
                    const std::vector<std::string>& flags = {}, int exit_code = 2) {
  for (const bool existed : {false, true}) {
    const TemporaryFolder folder;
    write_bytes(folder.path("IN"), in);
    if (existed) write_bytes(folder.path("OUT"), kOld);
    std::vector<std::string> arguments = {"attend", folder.path("IN"), folder.path("OUT")};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const CommandResult result = run_command(arguments);
    EXPECT_EQ(error_fault(result, field, exit_code), "");
    const std::vector<std::string> names = folder.names();
    if (existed) {
      EXPECT_EQ(names, (std::vector<std::string>{"IN", "OUT"}));
      EXPECT_EQ(read_bytes(folder.path("OUT")), kOld);
    } else {
      EXPECT_EQ(names, (std::vector<std::string>{"IN"}));
    }
  }
}

TEST(Errors, TheGoodInputIsGood) {
  const TemporaryFolder folder;
  write_bytes(folder.path("IN"), safetensors_bytes(good()));
  const CommandResult result = run_command({"attend", folder.path("IN"), folder.path("OUT")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(Errors, Shapes) {
  const auto refused = [](StoredTensor changed, const char* field) {
    SCOPED_TRACE(field);
    expect_refused(safetensors_bytes(good_but(std::move(changed))), field);
  };
  refused(f32_filled("q", {2, 3, 3, 8}), "q.shape[1]");  // 3 q_heads, 2 kv_heads
  refused(f32_filled("q", {2, 4, 3, 7}), "k.shape[3]");
  refused(f32_filled("q", {4, 3, 8}), "q.shape");
  refused(f32_filled("k", {1, 2, 5, 8}), "k.shape[0]");
  refused(f32_filled("v", {2, 2, 4, 6}), "v.shape[2]");
  refused(f32_filled("v", {2, 1, 5, 6}), "v.shape[1]");
  refused(f32_filled("q", {}), "q.shape");
}

TEST(Errors, OptionalTensors) {
  const auto refused = [](StoredTensor extra, const char* field,
                          const std::vector<std::string>& flags = {}) {
    SCOPED_TRACE(extra.name);
    expect_refused(safetensors_bytes(good_and(std::move(extra))), field, flags);
  };
  refused(f32_filled("bias", {2, 4, 3, 4}), "bias.shape[3]");
  refused(f32_filled("bias", {1, 2, 4, 3, 5}), "bias.shape");
  refused(f32_filled("mask", {1, 1, 3, 5}), "mask.dtype");
  refused(f32_filled("sink", {3}), "sink.shape[0]");
  refused(f32_filled("sink", {}), "sink.shape");
  refused(f32_filled("alibi_slopes", {2, 3}), "alibi_slopes.shape[1]");
  refused(f32_filled("seqused_kv", {2}), "seqused_kv.dtype");
  refused(i32_tensor("seqused_kv", {3}, {1, 2, 3}), "seqused_kv.shape[0]");
  refused(i32_tensor("seqused_kv", {2}, {1, 6}), "seqused_kv[1]");  // beyond kv_len 5
  refused(i32_tensor("seqused_kv", {2}, {-1, 5}), "seqused_kv[0]");
  refused(i32_tensor("seqused_q", {2}, {0, 4}), "seqused_q[1]");  // beyond q_len 3
  refused(f32_filled("biass", {1, 1, 3, 5}), "IN.biass");
  refused(i32_tensor("cu_seqlens_q", {3}, {0, 1, 2}), "--layout", {"--layout", "bshd"});
  refused(i32_tensor("cu_seqlens_q", {3}, {0, 1, 2}), "q.shape");
  StoredTensor wide_index = i32_tensor("seqused_kv", {2}, {1, 0, 1, 0});
  wide_index.dtype = "I64";
  refused(wide_index, "seqused_kv.dtype");
}

TEST(Errors, Types) {
  StoredTensor half = f32_filled("k", {2, 2, 5, 16});
  half.dtype = "F16";
  half.shape = {2, 2, 5, 32};
  half.shape = {2, 2, 5, 8};
  half.bytes.resize(2 * 2 * 5 * 8 * 2);
  expect_refused(safetensors_bytes(good_but(half)), "k.dtype");
  StoredTensor integers = i32_tensor("q", {2, 4, 3, 8}, std::vector<int32_t>(192));
  expect_refused(safetensors_bytes(good_but(integers)), "q.dtype");
  StoredTensor wide = f32_filled("sink", {8});
  wide.dtype = "F64";
  wide.shape = {4};
  expect_refused(safetensors_bytes(good_and(wide)), "sink.dtype");
}

TEST(Errors, MissingTensors) {
  std::vector<StoredTensor> tensors = good();
  tensors.pop_back();
  expect_refused(safetensors_bytes(tensors), "v");
  expect_refused(safetensors_bytes("{}", ""), "q");
}

TEST(Errors, HostileFiles) {
  const std::string in = safetensors_bytes(good());
  for (size_t size : {size_t{0}, size_t{7}, size_t{8}, size_t{9}, size_t{100}, in.size() - 1}) {
    SCOPED_TRACE(size);
    const std::string field = size < 8 || size == in.size() - 1 ? "IN" : "IN.header";
    const CommandResult result = [&] {
      const TemporaryFolder folder;
      write_bytes(folder.path("IN"), in.substr(0, size));
      return run_command({"attend", folder.path("IN"), folder.path("OUT")});
    }();
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.err.rfind("runmax: error: IN", 0), 0u) << result.err;
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1);
  }
  expect_refused(in + "x", "IN");
  expect_refused(std::string(8, '\xff') + "{}", "IN.header");
  const std::string same = R"("q":{"dtype":"F32","shape":[1,1,1,1],"data_offsets":[0,4]})";
  expect_refused(safetensors_bytes("{" + same + "," + same + "}", std::string(4, '\0')), "IN.q");
}

TEST(Errors, Values) {
  const std::string in = safetensors_bytes(good());
  expect_refused(in, "scale", {"--scale", "nan"});
  expect_refused(in, "scale", {"--scale", "inf"});
  expect_refused(in, "scale", {"--scale=-1e30"});
  expect_refused(in, "softcap", {"--softcap", "-1"});
  expect_refused(in, "softcap", {"--softcap", "nan"});
  expect_refused(in, "dropout", {"--dropout", "1.5", "--seed", "1"});
  expect_refused(in, "kernel", {"--kernel", "no_such_kernel"});
}

TEST(Errors, Usage) {
  const std::string in = safetensors_bytes(good());
  const auto refused = [&](const std::vector<std::string>& flags, const char* field) {
    SCOPED_TRACE(flags[0]);
    expect_refused(in, field, flags);
  };
  refused({"--window", "-2,0"}, "--window");
  refused({"--window=0,-3"}, "--window");
  refused({"--window", "1"}, "--window");
  refused({"--window", "1,2,3"}, "--window");
  refused({"--window", "1.5,2"}, "--window");
  refused({"--window", "99999999999999999999,0"}, "--window");
  refused({"--scale", "abc"}, "--scale");
  refused({"--scale", "1x"}, "--scale");
  refused({"--scale", ""}, "--scale");
  refused({"--scale="}, "--scale");
  refused({"--scale"}, "--scale");
  refused({"--scale", "1", "--scale", "2"}, "--scale");
  refused({"--causal=yes"}, "--causal");
  refused({"--align", "left"}, "--align");
  refused({"--sink-tokens", "-1"}, "--sink-tokens");
  refused({"--block-size", "0,1"}, "--block-size");
  refused({"--threads", "0"}, "--threads");
  refused({"--threads", "x"}, "--threads");
  refused({"--layout", "bsd"}, "--layout");
  refused({"--layout", "thd"}, "--layout");
  refused({"--dropout", "0.5"}, "--dropout");
  refused({"--seed", "5"}, "--seed");
  refused({"--device", "gpu"}, "--device");
  refused({"--device", "cuda:x"}, "--device");
  refused({"--kernel", "a\nb"}, "--kernel");
  refused({"--colour\n", "red"}, "--colour\\x0a");
  refused({"-x"}, "-x");
  refused({"a third file"}, "usage");
  refused({"--q", "q.npy"}, "--q");
}

TEST(Errors, Commands) {
  EXPECT_EQ(error_fault(run_command({}), "command"), "");
  EXPECT_EQ(error_fault(run_command({"bench"}), "command"), "");
  EXPECT_EQ(error_fault(run_command({"attend"}), "IN"), "");
  EXPECT_EQ(error_fault(run_command({"attend", "x"}), "OUT"), "");
  EXPECT_EQ(error_fault(run_command({"attend", "", "x"}), "IN"), "");
  EXPECT_EQ(error_fault(run_command({"check"}), "IN"), "");
  EXPECT_EQ(error_fault(run_command({"explain"}), "IN"), "");
  EXPECT_EQ(error_fault(run_command({"list", "x"}), "usage"), "");
  EXPECT_EQ(error_fault(run_command({"check", "x", "--problem", "q_len=3"}), "--problem"), "");
  EXPECT_EQ(error_fault(run_command({"check", "--problem", "q_len=3", "--causal"}), "--causal"),
            "");
  EXPECT_EQ(error_fault(run_command({"check", "--problem", "q_len=3 colour=red"}), "problem"), "");
  EXPECT_EQ(error_fault(run_command({"check", "--problem", "q_heads=3 kv_heads=2"}), "q.shape[1]"),
            "");
  EXPECT_EQ(
      error_fault(run_command({"explain", "--problem", "scale=0.0000000000000000000001"}), "scale"),
      "");
  EXPECT_EQ(error_fault(run_command({"explain", "--problem", "q_len=3", "--direction", "up"}),
                        "--direction"),
            "");
  EXPECT_EQ(error_fault(run_command({"check", "--problem", "q_len=1000000000 kv_len=1"}), "memory"),
            "");
  EXPECT_EQ(error_fault(run_command({"attend", "--q", "q.npy", "--out", "o.npy"}), "--k"), "");
  EXPECT_EQ(
      error_fault(run_command({"attend", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy"}), "--out"),
      "");
}

TEST(Errors, InputPlaces) {
  const TemporaryFolder folder;
  const std::string out = folder.path("OUT");
  EXPECT_EQ(error_fault(run_command({"attend", folder.root(), out}), "IN"), "");
  EXPECT_EQ(error_fault(run_command({"attend", folder.path("nothing"), out}), "IN"), "");
  EXPECT_EQ(error_fault(run_command({"attend", folder.path("a\nb"), out}), "IN"), "");
  EXPECT_EQ(error_fault(run_command({"attend", "/dev/null", out}), "IN"), "");
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(error_fault(run_command({"attend", folder.path("pipe"), out}), "IN"), "");
  EXPECT_EQ(error_fault(run_command({"check", folder.root()}), "IN"), "");
  EXPECT_EQ(error_fault(run_command({"explain", folder.path("nothing")}), "IN"), "");
  EXPECT_EQ(error_fault(
                run_command({"attend", "--q", folder.root(), "--k", "x", "--v", "x", "--out", out}),
                "--q"),
            "");
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"pipe"}));
}

TEST(Errors, OutputPlaces) {
  const TemporaryFolder folder;
  const std::string in = folder.path("IN");
  const std::string bytes = safetensors_bytes(good());
  write_bytes(in, bytes);
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  ASSERT_EQ(::mkdir(folder.path("folder").c_str(), 0700), 0);
  ASSERT_EQ(::symlink("nowhere", folder.path("dangling").c_str()), 0);
  ASSERT_EQ(::symlink("IN", folder.path("soft").c_str()), 0);
  ASSERT_EQ(::link(in.c_str(), folder.path("hard").c_str()), 0);
  const std::vector<std::string> before = folder.names();
  for (const std::string& out :
       {in, folder.path("./IN"), folder.path("soft"), folder.path("hard"), folder.path("folder"),
        folder.path("folder/"), folder.path("pipe"), folder.path("dangling"),
        folder.path("missing/OUT"), folder.path("IN/OUT"), folder.path(std::string(300, 'x')),
        std::string("/dev/null"), std::string("/dev/full"), std::string("/proc/runmax.out")}) {
    SCOPED_TRACE(out);
    EXPECT_EQ(error_fault(run_command({"attend", in, out}), "OUT"), "");
  }
  EXPECT_EQ(folder.names(), before);
  EXPECT_EQ(read_bytes(in), bytes);
}

TEST(Errors, NpyOutputsAreDifferentFiles) {
  const TemporaryFolder folder;
  for (const StoredTensor& tensor : good())
    write_bytes(folder.path(tensor.name), npy_bytes(tensor));
  const std::vector<std::string> base = {"attend",         "--q", folder.path("q"), "--k",
                                         folder.path("k"), "--v", folder.path("v")};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = base;
    all.insert(all.end(), more.begin(), more.end());
    return run_command(all);
  };
  EXPECT_EQ(error_fault(with({"--out", folder.path("o"), "--lse", folder.path("./o")}), "--out"),
            "");
  EXPECT_EQ(error_fault(with({"--out", folder.path("k")}), "--out"), "");
  EXPECT_EQ(error_fault(with({"--out", folder.path("o"), "--d-q", folder.path("d")}), "--d-q"), "");
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"k", "q", "v"}));
}

TEST(Errors, KernelOfTheOtherOperationIsRefused) {
  const TemporaryFolder folder;
  write_bytes(folder.path("IN"), safetensors_bytes(good()));
  for (const char* command : {"attend", "check", "explain"}) {
    SCOPED_TRACE(command);
    std::vector<std::string> arguments = {command, folder.path("IN")};
    if (arguments[0] == "attend") arguments.push_back(folder.path("OUT"));
    // A kernel of the other operation is known by name and takes no forward problem.
    arguments.insert(arguments.end(), {"--kernel", "backward_generic"});
    const CommandResult result = run_command(arguments);
    EXPECT_NE(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err.rfind("runmax: error: kernel: ", 0), 0u) << result.err;
  }
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"IN"}));
}

TEST(Errors, NoGpuIsSaid) {
  int32_t gpus = 0;
  ASSERT_EQ(runmax_device_count(RUNMAX_DEVICE_CUDA, &gpus), RUNMAX_OK);
  if (gpus > 0) return;
  expect_refused(safetensors_bytes(good()), "--device", {"--device", "cuda"});
}

}  // namespace
}  // namespace runmax::testing
