// What only a GPU can get wrong: graphs, streams, unchecked index tensors, hidden allocations. The
// results themselves are the business of tests/sweep and tests/cases, which run here unchanged.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "testing/element.h"
#include "testing/run.h"

namespace runmax::testing {
namespace {

using Bytes = std::vector<std::byte>;

void expect_cuda(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

// The outputs in logical order.
Bytes output_bits(const Case& c) {
  Bytes all;
  for (const char* name : {"out", "lse", "lse_lo"}) {
    if (!c.has(name)) continue;
    const Buffer& b = c.buffer(name);
    const auto size = static_cast<int64_t>(size_of(b.tensor.dtype));
    for_each_element(b.tensor, [&](const int64_t*, int64_t offset) {
      const auto* from = static_cast<const std::byte*>(b.pointer()) + offset * size;
      all.insert(all.end(), from, from + size);
    });
  }
  return all;
}

std::vector<std::string> forward_kernels() {
  std::vector<std::string> names;
  for (int32_t n = 0; n < runmax_kernel_count(); ++n) {
    runmax_kernel_info info{};
    info.struct_size = sizeof info;
    runmax_kernel_get(n, &info);
    if (info.device_kind == RUNMAX_DEVICE_CUDA && info.op == RUNMAX_FORWARD) {
      names.push_back(info.name);
    }
  }
  return names;
}

// Cases for every kernel that takes them: a kernel may refuse some, but not all.
std::vector<std::string> problems() {
  std::vector<std::string> all;
  for (const std::string& kernel : forward_kernels()) {
    const size_t before = all.size();
    for (const char* dtype : {"f32", "f64", "bf16", "f16"}) {
      for (const char* shape :
           {"batch=2 q_heads=4 kv_heads=2 q_len=200 kv_len=5000 head_dim=64 causal sink lse_lo",
            "batch=3 q_heads=2 q_len=3 kv_len=900 head_dim=128 seqused_kv num_splits=3",
            "batch=4 q_heads=2 q_len=150 kv_len=190 head_dim=64 packed causal window=90,0 "
            "seqused_q",
            "batch=2 q_heads=2 q_len=130 kv_len=300 head_dim=64 block_size=64,64 bias=11qk",
            "q_heads=2 q_len=130 kv_len=300 head_dim=64 dropout=0.3 seed=5"}) {
        const std::string text = std::string(shape) + " dtype=" + dtype + " kernel=" + kernel;
        const ProblemSpec spec = problem(text);
        const runmax_problem p = make_problem(spec);
        const runmax_status status = runmax_supports(&p, cuda_device());
        if (status == RUNMAX_OK) all.push_back(text);
        if (status == RUNMAX_UNSUPPORTED) continue;
        EXPECT_EQ(status, RUNMAX_OK) << runmax_last_error() << " " << text;
      }
    }
    EXPECT_GT(all.size(), before) << kernel << " takes none of the problems";
  }
  EXPECT_GE(all.size(), 20u);
  return all;
}

struct Stream {
  Stream() { expect_cuda(cudaStreamCreateWithFlags(&value, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(value); }
  Stream(const Stream&) = delete;
  cudaStream_t value = nullptr;
};

// A case in the memory of the GPU, with its plan and a workspace full of 0xFF.
class Prepared {
 public:
  explicit Prepared(const std::string& text)
      : c(text), memory_(cuda_device()), placement((c.seal(), c), memory_) {
    EXPECT_EQ(runmax_plan_create(&c.problem(), cuda_device(), &plan_), RUNMAX_OK)
        << runmax_last_error();
    bytes_ = runmax_plan_workspace_size(plan_);
    workspace_ = memory_.alloc(bytes_);
    poison();
  }
  ~Prepared() {
    memory_.free(workspace_);
    runmax_plan_destroy(plan_);
  }
  Prepared(const Prepared&) = delete;

  void poison() {
    const Bytes ones(bytes_, std::byte{0xff});
    if (bytes_ > 0) memory_.copy_in(workspace_, ones.data(), bytes_);
  }
  void run(cudaStream_t stream) { run(placement.args(), stream); }
  void run(const runmax_args& args, cudaStream_t stream) {
    EXPECT_EQ(runmax_execute(plan_, &args, workspace_, bytes_, stream), RUNMAX_OK)
        << runmax_last_error();
  }
  runmax_status check() { return runmax_check_args(plan_, &placement.args(), nullptr); }
  Bytes bits() {
    placement.fetch();
    EXPECT_EQ(c.damage(), "");
    return output_bits(c);
  }

  Case c;

 private:
  DeviceMemory memory_;

 public:
  Placement placement;

 private:
  runmax_plan* plan_ = nullptr;
  size_t bytes_ = 0;
  void* workspace_ = nullptr;
};

// What the case gives when it is executed by itself.
Bytes alone(const std::string& text) {
  Case c(text);
  const Outcome outcome = execute(c, cuda_device());
  EXPECT_TRUE(outcome.ok()) << outcome.text() << "\n  " << text;
  return output_bits(c);
}

// Every operand that both cases have, lengths and lists included.
void take_contents(Case& to, const Case& from) {
  for (const Operand& operand : operands()) {
    if (!to.has(operand.name) || operand.is_output(to.problem())) continue;
    const Buffer& source = from.buffer(operand.name);
    const Buffer& target = to.buffer(operand.name);
    ASSERT_EQ(source.storage_bytes, target.storage_bytes) << operand.name;
    std::memcpy(target.block.get() + target.storage_begin,
                source.block.get() + source.storage_begin,
                static_cast<size_t>(source.storage_bytes));
  }
  to.seal();
}

// Every feature once, small enough for compute-sanitizer.
TEST(Gpu, small_problems) {
  int64_t runs = 0;
  for (const std::string& kernel : forward_kernels()) {
    for (const char* dtype : {"f32", "f64", "bf16", "f16"}) {
      for (const char* shape :
           {"batch=2 q_heads=4 kv_heads=2 q_len=133 kv_len=70 head_dim=64 causal sink lse_lo",
            "q_heads=2 q_len=9 kv_len=150 head_dim=11 head_dim_v=70 layout=strided window=40,3",
            "batch=2 q_heads=2 q_len=130 kv_len=65 head_dim=128 alignment=64 num_splits=2 "
            "softcap=5",
            "batch=3 q_heads=2 q_len=20 kv_len=90 head_dim=64 packed seqused_q seqused_kv causal "
            "alibi fill=hostile",
            "batch=2 q_heads=2 q_len=40 kv_len=70 head_dim=64 block_size=16,16 bias=11qk mask=b1qk "
            "segments=2 prefix_len dropout=0.2 seed=4 fill=hostile poison_hidden",
            "batch=2 q_heads=1 q_len=1 kv_len=300 head_dim=64 seqused_kv=0,300 keep_unused"}) {
        const std::string text = std::string(shape) + " dtype=" + dtype + " kernel=" + kernel;
        const ProblemSpec spec = problem(text);
        const runmax_problem p = make_problem(spec);
        if (runmax_supports(&p, cuda_device()) != RUNMAX_OK) continue;
        CheckOptions options;
        options.with_plain = false;
        const CheckReport report = check(spec, options);
        EXPECT_TRUE(report.passed()) << report.text();
        ++runs;
      }
    }
  }
  for (const char* dtype : {"f32", "f64", "bf16", "f16"}) {
    const CheckReport report = check(problem(
        std::string("direction=merge partials=3 q_heads=2 q_len=20 head_dim=37 dtype=") + dtype));
    EXPECT_TRUE(report.passed()) << report.text();
  }
  EXPECT_GE(runs, 24);
}

TEST(Gpu, graph_replay_reads_changed_contents) {
  for (const std::string& text : problems()) {
    Stream stream;
    Prepared run(text + " data_seed=1");
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    expect_cuda(cudaStreamBeginCapture(stream.value, cudaStreamCaptureModeGlobal));
    run.run(stream.value);
    expect_cuda(cudaStreamEndCapture(stream.value, &graph));
    expect_cuda(cudaGraphInstantiate(&executable, graph, 0));
    for (const char* seed : {"1", "2", "3"}) {
      // Drawn packed lengths give other totals with another seed: those keep their lengths.
      const bool packed = text.find("packed") != std::string::npos;
      const std::string other = text + " data_seed=" + (packed ? "1" : seed);
      if (!packed) {
        const Case next(other);
        take_contents(run.c, next);
        run.placement.refresh();
      }
      run.poison();
      expect_cuda(cudaGraphLaunch(executable, stream.value));
      expect_cuda(cudaStreamSynchronize(stream.value));
      EXPECT_EQ(run.bits(), alone(other)) << other;
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  }
}

TEST(Gpu, dropout_seed_by_pointer_changes_between_replays) {
  const std::string text = "q_heads=2 q_len=70 kv_len=200 head_dim=64 dropout=0.3";
  Stream stream;
  Prepared run(text + " seed=0");
  DeviceMemory memory(cuda_device());
  uint64_t random[2] = {0, 0};
  auto* there = static_cast<uint64_t*>(memory.alloc(sizeof random));
  runmax_args args = run.placement.args();
  args.seed = args.offset = 0;
  args.seed_pointer = there;
  args.offset_pointer = there + 1;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  expect_cuda(cudaStreamBeginCapture(stream.value, cudaStreamCaptureModeGlobal));
  run.run(args, stream.value);
  expect_cuda(cudaStreamEndCapture(stream.value, &graph));
  expect_cuda(cudaGraphInstantiate(&executable, graph, 0));
  std::vector<Bytes> seen;
  for (uint64_t seed : {7, 8}) {
    random[0] = seed;
    random[1] = 3;
    memory.copy_in(there, random, sizeof random);
    expect_cuda(cudaGraphLaunch(executable, stream.value));
    expect_cuda(cudaStreamSynchronize(stream.value));
    seen.push_back(run.bits());
    EXPECT_EQ(seen.back(), alone(text + " seed=" + std::to_string(seed) + " offset=3"));
  }
  EXPECT_NE(seen[0], seen[1]);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  memory.free(there);
}

TEST(Gpu, two_streams_at_once) {
  const std::vector<std::string> all = problems();
  for (size_t n = 0; n + 1 < all.size(); n += 2) {
    Stream streams[2];
    Prepared first(all[n]), second(all[n + 1]);
    const Bytes wanted[] = {alone(all[n]), alone(all[n + 1])};
    for (int round = 0; round < 5; ++round) {
      for (int repeat = 0; repeat < 4; ++repeat) {
        first.run(streams[0].value);
        second.run(streams[1].value);
      }
      expect_cuda(cudaDeviceSynchronize());
      ASSERT_EQ(first.bits(), wanted[0]) << all[n];
      ASSERT_EQ(second.bits(), wanted[1]) << all[n + 1];
    }
  }
}

TEST(Gpu, the_same_bits_every_time) {
  for (const std::string& text : problems()) {
    Prepared run(text);
    const Bytes wanted = alone(text);
    for (int repeat = 0; repeat < 10; ++repeat) {
      run.c.seal();
      run.placement.refresh();  // poisoned outputs
      run.poison();
      run.run(nullptr);
      expect_cuda(cudaDeviceSynchronize());
      ASSERT_EQ(run.bits(), wanted) << text;
    }
  }
}

TEST(Gpu, execute_allocates_nothing) {
  for (const std::string& text : problems()) {
    Prepared run(text);
    run.run(nullptr);
    expect_cuda(cudaDeviceSynchronize());
    size_t before = 0, after = 0, total = 0;
    expect_cuda(cudaMemGetInfo(&before, &total));
    for (int repeat = 0; repeat < 20; ++repeat) run.run(nullptr);
    expect_cuda(cudaDeviceSynchronize());
    expect_cuda(cudaMemGetInfo(&after, &total));
    EXPECT_EQ(before, after) << text << " (is another process using the GPU?)";
  }
}

// Nobody checks index tensors on the device unless asked; whatever they hold, nothing outside the
// operands is touched.
TEST(Gpu, wild_index_tensors_stay_in_bounds) {
  int64_t runs = 0;
  const int32_t wild[] = {INT32_MIN, -1, 0, 3, 150, 1 << 20, INT32_MAX};
  for (const std::string& kernel : forward_kernels()) {
    for (const char* dtype : {"f32", "bf16"}) {
      for (const char* shape :
           {"batch=3 q_heads=2 q_len=70 kv_len=150 head_dim=64 packed causal bias=11qk mask=11qk",
            "batch=3 q_heads=2 q_len=70 kv_len=150 head_dim=64 seqused_q seqused_kv causal",
            "batch=3 q_heads=2 q_len=70 kv_len=150 head_dim=64 diagonal_offset prefix_len "
            "window=9,0",
            "batch=2 q_heads=2 q_len=70 kv_len=150 head_dim=64 block_size=16,16",
            "batch=3 q_heads=2 q_len=70 kv_len=150 head_dim=64 packed block_size=16,16"}) {
        const std::string text = std::string(shape) + " dtype=" + dtype + " kernel=" + kernel;
        const ProblemSpec spec = problem(text);
        const runmax_problem p = make_problem(spec);
        if (runmax_supports(&p, cuda_device()) != RUNMAX_OK) continue;
        for (int64_t seed = 0; seed < 12; ++seed) {
          Prepared run(text);
          int64_t n = 0;
          for (const char* name : {"cu_seqlens_q", "cu_seqlens_kv", "seqused_q", "seqused_kv",
                                   "diagonal_offset", "prefix_len", "block_index"}) {
            if (!run.c.has(name)) continue;
            run.c.fill(name, [&](const int64_t*) {
              return wild[random_below(static_cast<uint64_t>(seed), static_cast<uint64_t>(n++), 7)];
            });
          }
          run.c.seal();
          run.placement.refresh();
          run.run(nullptr);
          expect_cuda(cudaDeviceSynchronize());
          run.bits();  // guards
          ++runs;
        }
      }
    }
  }
  EXPECT_GT(runs, 100);
}

TEST(Gpu, check_args_names_the_first_bad_entry) {
  Prepared run("batch=3 q_len=8 kv_len=9 head_dim=16 seqused_kv=1,2,3");
  EXPECT_EQ(run.check(), RUNMAX_OK) << runmax_last_error();
  run.c.set("seqused_kv", {1}, 10);
  run.placement.refresh();
  EXPECT_EQ(run.check(), RUNMAX_INVALID_ARGUMENT);
  EXPECT_STREQ(runmax_last_error_field(), "seqused_kv[1]");
}

TEST(Gpu, a_checked_plan_refuses_bad_entries) {
  Case c("batch=3 q_len=8 kv_len=9 head_dim=16 seqused_kv=1,2,3");
  c.problem().flags |= RUNMAX_CHECKED;
  DeviceMemory memory(cuda_device());
  for (int64_t length : {2, 10}) {
    c.set("seqused_kv", {1}, static_cast<double>(length));
    c.seal();
    Placement placement(c, memory);
    runmax_plan* plan = nullptr;
    ASSERT_EQ(runmax_plan_create(&c.problem(), cuda_device(), &plan), RUNMAX_OK);
    const size_t bytes = runmax_plan_workspace_size(plan);
    void* workspace = memory.alloc(bytes);
    EXPECT_EQ(runmax_execute(plan, &placement.args(), workspace, bytes, nullptr),
              length > 9 ? RUNMAX_INVALID_ARGUMENT : RUNMAX_OK);
    placement.fetch();
    const auto elements = static_cast<int64_t>(c.values("out").size());
    EXPECT_EQ(c.unwritten("out"), length > 9 ? elements : 0);
    memory.free(workspace);
    runmax_plan_destroy(plan);
  }
}

TEST(Gpu, the_device_describes_itself) {
  runmax_device_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(runmax_device_get_info(cuda_device(), &info), RUNMAX_OK);
  EXPECT_EQ(info.kind, RUNMAX_DEVICE_CUDA);
  EXPECT_GT(info.max_threads, 0);
  EXPECT_GE(info.l1_bytes, 48u << 10);
  EXPECT_GT(info.memory_bytes, uint64_t{1} << 30);
  EXPECT_NE(info.name[0], '\0');
  std::printf("[gpu] %s\n", info.name);
  int32_t count = 0;
  EXPECT_EQ(runmax_device_count(RUNMAX_DEVICE_CUDA, &count), RUNMAX_OK);
  EXPECT_GE(count, 1);

  runmax_roofs roofs{};
  roofs.struct_size = sizeof roofs;
  ASSERT_EQ(runmax_measure_roofs(cuda_device(), &roofs), RUNMAX_OK) << runmax_last_error();
  EXPECT_GT(roofs.flops_per_second, 1e12);
  EXPECT_GT(roofs.bytes_per_second, 1e11);
}

TEST(Gpu, an_index_without_a_gpu_is_refused) {
  runmax_device_options options{};
  options.struct_size = sizeof options;
  options.kind = RUNMAX_DEVICE_CUDA;
  options.index = 1000;
  runmax_device* device = nullptr;
  EXPECT_EQ(runmax_device_create(&options, &device), RUNMAX_INVALID_ARGUMENT);
  EXPECT_STREQ(runmax_last_error_field(), "index");
}

// The caller's current device is the caller's.
TEST(Gpu, the_current_device_stays) {
  int count = 0;
  expect_cuda(cudaGetDeviceCount(&count));
  int last = count - 1, now = -1;
  expect_cuda(cudaSetDevice(last));
  alone("q_len=5 head_dim=16");
  expect_cuda(cudaGetDevice(&now));
  EXPECT_EQ(now, last);
  expect_cuda(cudaSetDevice(0));
}

}  // namespace
}  // namespace runmax::testing
