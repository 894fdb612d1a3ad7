#include "device/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "core/abi.h"
#include "device/cpu_count.h"
#include "device/cpu_device.h"
#include "device/cpu_features.h"
#include "device/environment.h"

namespace runmax {
namespace {

runmax_device_options default_options() {
  runmax_device_options options{};
  options.struct_size = sizeof options;
  return options;
}

TEST(Device, DefaultsDescribeTheMachine) {
  const auto device = create_cpu_device({}, {});
  ASSERT_TRUE(device.is_ok()) << device.status().message();
  const DeviceInfo& info = device.value()->info();
  EXPECT_EQ(info.kind, RUNMAX_DEVICE_CPU);
  EXPECT_EQ(info.max_threads, available_cpus());
  EXPECT_EQ(info.isa, info.isa_found);
  EXPECT_NE(info.isa & RUNMAX_ISA_BASELINE, 0u);
  EXPECT_GE(info.l1_bytes, 8u << 10);
  EXPECT_GT(info.l2_bytes, info.l1_bytes);
  EXPECT_GT(info.memory_bytes, 0u);
  EXPECT_FALSE(info.name.empty());
}

#if defined(__x86_64__)
TEST(Device, FeaturesAgreeWithTheCompilerRuntime) {
  const uint64_t isa = detect_cpu().isa;
  EXPECT_EQ((isa & RUNMAX_ISA_AVX2) != 0,
            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ((isa & RUNMAX_ISA_AVX512) != 0,
            __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
  EXPECT_EQ((isa & RUNMAX_ISA_AVX512_BF16) != 0, __builtin_cpu_supports("avx512bf16") != 0);
}
#endif

TEST(Device, MaskNarrowsTheInstructionSets) {
  runmax_device_options options = default_options();
  options.isa_mask = RUNMAX_ISA_BASELINE;
  EXPECT_EQ(create_cpu_device(options, {}).value()->info().isa, uint64_t{RUNMAX_ISA_BASELINE});
  const uint64_t found = detect_cpu().isa;
  options.isa_mask = RUNMAX_ISA_AVX2;  // the baseline is always there
  EXPECT_EQ(create_cpu_device(options, {}).value()->info().isa,
            RUNMAX_ISA_BASELINE | (found & RUNMAX_ISA_AVX2));
  EXPECT_EQ(create_cpu_device(options, {}).value()->info().isa_found, found);
}

TEST(Device, EnvironmentNarrowsAndSizes) {
  EnvironmentSettings settings;
  settings.isa = RUNMAX_ISA_BASELINE;
  settings.threads = 5;
  const auto device = create_cpu_device(default_options(), settings);
  EXPECT_EQ(device.value()->info().isa, uint64_t{RUNMAX_ISA_BASELINE});
  EXPECT_EQ(device.value()->info().max_threads, 5);
  runmax_device_options options = default_options();
  options.max_threads = 3;  // the caller's word is stronger
  EXPECT_EQ(create_cpu_device(options, settings).value()->info().max_threads, 3);

#if defined(__x86_64__)
  settings.isa = RUNMAX_ISA_NEON;
#else
  settings.isa = RUNMAX_ISA_AVX2;
#endif
  const auto absent = create_cpu_device(default_options(), settings);
  ASSERT_FALSE(absent.is_ok());
  EXPECT_EQ(absent.status().field(), "RUNMAX_ISA");
}

TEST(Environment, ParsesItsVariables) {
  const auto parse = [](const char* isa, const char* threads) {
    const EnvironmentVariable variables[] = {{"RUNMAX_ISA", "", isa},
                                             {"RUNMAX_THREADS", "", threads}};
    return parse_environment(variables);
  };
  EXPECT_EQ(parse(nullptr, nullptr).value().isa, 0u);
  EXPECT_EQ(parse(nullptr, nullptr).value().threads, 0);
  EXPECT_EQ(parse("avx512", "7").value().isa, uint64_t{RUNMAX_ISA_AVX512});
  EXPECT_EQ(parse("avx512", "7").value().threads, 7);
  for (const char* bad : {"", "AVX2", "sse", "avx2 "}) {
    ASSERT_FALSE(parse(bad, nullptr).is_ok()) << bad;
    EXPECT_EQ(parse(bad, nullptr).status().field(), "RUNMAX_ISA");
  }
  for (const char* bad : {"", "0", "-1", "2x", " 2", "1025", "99999999999"}) {
    ASSERT_FALSE(parse(nullptr, bad).is_ok()) << bad;
    EXPECT_EQ(parse(nullptr, bad).status().field(), "RUNMAX_THREADS");
  }
}

TEST(Environment, ListsEveryVariable) {
  ASSERT_EQ(environment().size(), 2u);
  for (const EnvironmentVariable& variable : environment()) {
    EXPECT_EQ(std::string(variable.name).rfind("RUNMAX_", 0), 0u);
    EXPECT_NE(variable.summary[0], '\0');
  }
}

TEST(Isa, NamesAndLevels) {
  for (uint64_t bit = 1; bit <= RUNMAX_ISA_NEON; bit *= 2) {
    ASSERT_NE(isa_name(bit), nullptr);
    EXPECT_EQ(isa_from_name(isa_name(bit)), bit);
  }
  EXPECT_EQ(isa_name(RUNMAX_ISA_NEON * 2), nullptr);
  EXPECT_EQ(isa_name(3), nullptr);
  EXPECT_EQ(isa_from_name("mmx"), 0u);
  EXPECT_EQ(isa_from_name(nullptr), 0u);
  EXPECT_EQ(isa_level(RUNMAX_ISA_AVX512),
            RUNMAX_ISA_BASELINE | RUNMAX_ISA_AVX2 | RUNMAX_ISA_AVX512);
  EXPECT_EQ(isa_level(RUNMAX_ISA_NEON), RUNMAX_ISA_BASELINE | RUNMAX_ISA_NEON);
  EXPECT_EQ(isa_names(RUNMAX_ISA_BASELINE | RUNMAX_ISA_AVX2), "baseline, avx2");
}

TEST(Device, RefusesBadOptions) {
  struct Refusal {
    void (*change)(runmax_device_options&);
    const char* field;
    runmax_status code;
  };
  const Refusal refusals[] = {
      {[](runmax_device_options& o) { o.struct_size = 4; }, "struct_size", RUNMAX_INVALID_ARGUMENT},
      {[](runmax_device_options& o) { o.kind = 2; }, "kind", RUNMAX_INVALID_ARGUMENT},
      {[](runmax_device_options& o) { o.kind = RUNMAX_DEVICE_CUDA; }, "kind", RUNMAX_DEVICE_ERROR},
      {[](runmax_device_options& o) { o.index = 1; }, "index", RUNMAX_INVALID_ARGUMENT},
      {[](runmax_device_options& o) { o.max_threads = -1; }, "max_threads",
       RUNMAX_INVALID_ARGUMENT},
      {[](runmax_device_options& o) { o.max_threads = 1 << 20; }, "max_threads",
       RUNMAX_INVALID_ARGUMENT},
      {[](runmax_device_options& o) { o.isa_mask = uint64_t{1} << 40; }, "isa_mask",
       RUNMAX_INVALID_ARGUMENT},
  };
  for (const Refusal& refusal : refusals) {
    runmax_device_options options = default_options();
    refusal.change(options);
    const auto device = create_device(&options);
    ASSERT_FALSE(device.is_ok()) << refusal.field;
    EXPECT_EQ(device.status().field(), refusal.field) << device.status().message();
    EXPECT_EQ(device.status().code(), refusal.code) << device.status().message();
  }
  EXPECT_TRUE(create_device(nullptr).is_ok());
}

TEST(Device, CountsDevices) {
  std::string reason;
  EXPECT_EQ(device_count(RUNMAX_DEVICE_CPU, reason), 1);
  EXPECT_EQ(reason, "");
  // With or without a backend and a GPU: none is never without a reason.
  const int32_t gpus = device_count(RUNMAX_DEVICE_CUDA, reason);
  EXPECT_GE(gpus, 0);
  EXPECT_EQ(reason.empty(), gpus > 0) << reason;
}

TEST(Device, MemoryIsAlignedAndCopied) {
  const auto device = std::move(create_device(nullptr).value());
  void* memory = nullptr;
  ASSERT_TRUE(device->alloc(1000, &memory).is_ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % RUNMAX_WORKSPACE_ALIGNMENT, 0u);
  std::vector<char> from(1000);
  std::iota(from.begin(), from.end(), 0);
  std::vector<char> to(1000);
  EXPECT_TRUE(device->copy(memory, from.data(), 1000, RUNMAX_COPY_TO_DEVICE, nullptr).is_ok());
  EXPECT_TRUE(device->copy(to.data(), memory, 1000, RUNMAX_COPY_FROM_DEVICE, nullptr).is_ok());
  EXPECT_EQ(from, to);
  EXPECT_TRUE(device->copy(nullptr, nullptr, 0, RUNMAX_COPY_ON_DEVICE, nullptr).is_ok());
  EXPECT_EQ(device->copy(nullptr, memory, 1, RUNMAX_COPY_ON_DEVICE, nullptr).field(), "to");
  EXPECT_EQ(device->copy(memory, nullptr, 1, RUNMAX_COPY_ON_DEVICE, nullptr).field(), "from");
  EXPECT_EQ(device->copy(to.data(), memory, 1, 3, nullptr).field(), "direction");
  EXPECT_EQ(device->copy(to.data(), memory, 1, 0, memory).field(), "stream");
  EXPECT_EQ(device->sync(memory).field(), "stream");
  EXPECT_TRUE(device->sync(nullptr).is_ok());
  EXPECT_TRUE(device->free(memory).is_ok());
  EXPECT_TRUE(device->free(nullptr).is_ok());

  ASSERT_TRUE(device->alloc(0, &memory).is_ok());
  EXPECT_NE(memory, nullptr);
  EXPECT_TRUE(device->free(memory).is_ok());
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Device, TooMuchMemoryIsAnError) {
  const auto device = std::move(create_device(nullptr).value());
  int here;
  void* memory = &here;
  const Status status = device->alloc(SIZE_MAX / 2, &memory);
  EXPECT_EQ(status.code(), RUNMAX_OUT_OF_MEMORY);
  EXPECT_EQ(status.field(), "bytes");
  EXPECT_EQ(memory, nullptr);
}
#endif

TEST(Device, UsesTheCallersThreads) {
  struct Executor {
    int calls = 0;
    static void parallel_for(void* self, int64_t tasks, runmax_task task, void* context) {
      ++static_cast<Executor*>(self)->calls;
      for (int64_t i = tasks; i-- > 0;) task(context, i, static_cast<int32_t>(i % 2));
    }
  } executor;
  runmax_device_options options = default_options();
  options.max_threads = 2;
  options.parallel_for = Executor::parallel_for;
  options.parallel_for_self = &executor;
  const auto device = std::move(create_device(&options).value());
  std::vector<int> slots(6, -1);
  device->parallel_for(
      6,
      [](void* self, int64_t i, int32_t slot) {
        (*static_cast<std::vector<int>*>(self))[i] = slot;
      },
      &slots);
  EXPECT_EQ(executor.calls, 1);
  EXPECT_EQ(slots, (std::vector<int>{0, 1, 0, 1, 0, 1}));
  device->parallel_for(0, nullptr, nullptr);
  EXPECT_EQ(executor.calls, 1);
}

TEST(Device, MeasuresRoofs) {
  const auto device = std::move(create_device(nullptr).value());
  runmax_roofs roofs{};
  ASSERT_TRUE(device->measure_roofs(roofs).is_ok());
  EXPECT_EQ(roofs.threads, device->info().max_threads);
  EXPECT_GT(roofs.flops_per_second, 1e8);  // any machine; the numbers themselves are for people
  EXPECT_GT(roofs.bytes_per_second, 1e7);
}

TEST(Abi, FirstReleaseSizesAreThoseOfTheHeader) {
  EXPECT_GE(sizeof(runmax_problem), kFirstProblemSize);
  EXPECT_GE(sizeof(runmax_args), kFirstArgsSize);
  EXPECT_GE(sizeof(runmax_device_options), kFirstDeviceOptionsSize);
  EXPECT_EQ(sizeof(runmax_tensor), 128u);
}

}  // namespace
}  // namespace runmax
