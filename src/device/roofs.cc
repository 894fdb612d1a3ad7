#include "device/roofs.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <ctime>

namespace runmax {
namespace {

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Multiply-adds on fixed registers, in one block of assembly each: a compiler that spilled one
// accumulator would halve the roof. 14 independent chains cover latency times throughput of every
// core; x <- x * (1 - 2^-6) + 2^-6 stays at 1, so no value becomes zero or subnormal.
struct FmaLoop {
  void (*run)(int64_t iterations);
  double flops_per_iteration;
};

alignas(64) constexpr float kOne = 1.0f;
alignas(64) constexpr float kFactor = 1.0f - 0x1p-6f;
alignas(64) constexpr float kAddend = 0x1p-6f;

#if defined(__x86_64__)

#define RUNMAX_ALL_XMM                                                                     \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
#define RUNMAX_CHAINS(step)                                                                \
  step(0) step(1) step(2) step(3) step(4) step(5) step(6) step(7) step(8) step(9) step(10) \
      step(11) step(12) step(13)

#define RUNMAX_SSE_INIT(i) "movss %[one], %%xmm" #i "\n shufps $0, %%xmm" #i ", %%xmm" #i "\n"
#define RUNMAX_SSE_STEP(i) "mulps %%xmm14, %%xmm" #i "\n addps %%xmm15, %%xmm" #i "\n"
void run_sse(int64_t iterations) {
  __asm__ volatile(
      "movss %[factor], %%xmm14\n shufps $0, %%xmm14, %%xmm14\n"
      "movss %[addend], %%xmm15\n shufps $0, %%xmm15, %%xmm15\n" RUNMAX_CHAINS(
          RUNMAX_SSE_INIT) ".p2align 5\n1:\n" RUNMAX_CHAINS(RUNMAX_SSE_STEP) "dec %[n]\n jnz 1b\n"
      : [n] "+r"(iterations)
      : [one] "m"(kOne), [factor] "m"(kFactor), [addend] "m"(kAddend)
      : "cc", RUNMAX_ALL_XMM);
}

#define RUNMAX_VEX_INIT(i) "vbroadcastss %[one], %%ymm" #i "\n"
#define RUNMAX_VEX_STEP(i) "vfmadd213ps %%ymm15, %%ymm14, %%ymm" #i "\n"
void run_avx2(int64_t iterations) {
  __asm__ volatile(
      "vbroadcastss %[factor], %%ymm14\n"
      "vbroadcastss %[addend], %%ymm15\n" RUNMAX_CHAINS(RUNMAX_VEX_INIT)
      ".p2align 5\n1:\n" RUNMAX_CHAINS(RUNMAX_VEX_STEP)
      "dec %[n]\n jnz 1b\n vzeroupper\n"
      : [n] "+r"(iterations)
      : [one] "m"(kOne), [factor] "m"(kFactor), [addend] "m"(kAddend)
      : "cc", RUNMAX_ALL_XMM);
}

#define RUNMAX_EVEX_INIT(i) "vbroadcastss %[one], %%zmm" #i "\n"
#define RUNMAX_EVEX_STEP(i) "vfmadd213ps %%zmm15, %%zmm14, %%zmm" #i "\n"
void run_avx512(int64_t iterations) {
  __asm__ volatile(
      "vbroadcastss %[factor], %%zmm14\n"
      "vbroadcastss %[addend], %%zmm15\n" RUNMAX_CHAINS(RUNMAX_EVEX_INIT)
      ".p2align 5\n1:\n" RUNMAX_CHAINS(RUNMAX_EVEX_STEP)
      "dec %[n]\n jnz 1b\n vzeroupper\n"
      : [n] "+r"(iterations)
      : [one] "m"(kOne), [factor] "m"(kFactor), [addend] "m"(kAddend)
      : "cc", RUNMAX_ALL_XMM);
}

FmaLoop fma_loop(uint64_t isa) {
  if (isa & RUNMAX_ISA_AVX512) return {run_avx512, 14 * 16 * 2};
  if (isa & RUNMAX_ISA_AVX2) return {run_avx2, 14 * 8 * 2};
  return {run_sse, 14 * 4 * 2};
}

#elif defined(__aarch64__)

#define RUNMAX_NEON_INIT(i) "dup v" #i ".4s, %w[one]\n"
#define RUNMAX_NEON_STEP(i) "fmla v" #i ".4s, v30.4s, v31.4s\n"
#define RUNMAX_CHAINS(step)                                                                  \
  step(0) step(1) step(2) step(3) step(4) step(5) step(6) step(7) step(16) step(17) step(18) \
      step(19) step(20) step(21) step(22) step(23)
// fmla adds to its accumulator, so x grows by 2^-12 each step: to 2^12 at most before it sticks.
void run_neon(int64_t iterations) {
  __asm__ volatile(
      "dup v30.4s, %w[addend]\n dup v31.4s, %w[addend]\n" RUNMAX_CHAINS(
          RUNMAX_NEON_INIT) "1:\n" RUNMAX_CHAINS(RUNMAX_NEON_STEP) "subs %[n], %[n], #1\n b.ne 1b\n"
      : [n] "+r"(iterations)
      : [one] "r"(__builtin_bit_cast(uint32_t, kOne)), [addend] "r"(
                                                           __builtin_bit_cast(uint32_t, kAddend))
      : "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20",
        "v21", "v22", "v23", "v30", "v31");
}

FmaLoop fma_loop(uint64_t) { return {run_neon, 16 * 4 * 2}; }

#else

void run_scalar(int64_t iterations) {
  volatile float x = kOne;
  for (int64_t i = 0; i < iterations; ++i) x = x * kFactor + kAddend;
}

FmaLoop fma_loop(uint64_t) { return {run_scalar, 2}; }

#endif

double measure_flops(const Device& device) {
  struct Context {
    FmaLoop loop;
    double deadline;
    std::atomic<int64_t> iterations;
  };
  constexpr int kRounds = 4;
  constexpr double kSeconds = 0.05;
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double start = now();
    Context context{fma_loop(device.info().isa), start + kSeconds, 0};
    // One task per slot, each until the common deadline. Where there are fewer threads than slots
    // the late ones add next to nothing, and the rate stays true.
    device.parallel_for(
        device.info().max_threads,
        [](void* self, int64_t, int32_t) {
          auto& c = *static_cast<Context*>(self);
          constexpr int64_t kBatch = 20'000;
          int64_t done = 0;
          do {
            c.loop.run(kBatch);
            done += kBatch;
          } while (now() < c.deadline);
          c.iterations.fetch_add(done, std::memory_order_relaxed);
        },
        &context);
    const double work = static_cast<double>(context.iterations) * context.loop.flops_per_iteration;
    best = std::max(best, work / (now() - start));
  }
  return best;
}

// Eight sums, so that loads and not a chain of additions set the pace. What is measured is the
// machine, in a sanitizer's build too.
__attribute__((no_sanitize("address", "thread", "undefined"))) uint64_t read_stream(
    const uint64_t* data, size_t words) {
  uint64_t sum[8] = {};
  for (size_t i = 0; i + 8 <= words; i += 8) {
    for (int j = 0; j < 8; ++j) sum[j] += data[i + j];
  }
  uint64_t total = 0;
  for (uint64_t s : sum) total += s;
  return total;
}

// A buffer that caches hold little of. Where a machine shares a cache far larger than its own
// share of memory, the largest buffer of good manners must do.
class StreamBuffer {
 public:
  explicit StreamBuffer(const DeviceInfo& info) {
    constexpr uint64_t kLeast = uint64_t{64} << 20;
    constexpr uint64_t kMost = uint64_t{512} << 20;
    uint64_t bytes = std::clamp(4 * info.l3_bytes, kLeast, kMost);
    if (info.memory_bytes != 0) bytes = std::min(bytes, info.memory_bytes / 8);
    for (; bytes >= kLeast / 8; bytes /= 2) {
      void* pointer =
          mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (pointer == MAP_FAILED) continue;
      madvise(pointer, bytes, MADV_HUGEPAGE);  // only a hint
      data_ = static_cast<uint64_t*>(pointer);
      bytes_ = bytes;
      return;
    }
  }
  ~StreamBuffer() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  StreamBuffer(const StreamBuffer&) = delete;
  StreamBuffer& operator=(const StreamBuffer&) = delete;

  uint64_t* data() { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  uint64_t* data_ = nullptr;
  size_t bytes_ = 0;
};

double measure_bandwidth(const Device& device) {
  constexpr size_t kChunk = size_t{1} << 20;
  constexpr int kRounds = 4;
  StreamBuffer buffer(device.info());
  if (buffer.data() == nullptr) return 0;
  struct Context {
    uint64_t* data;
    std::atomic<uint64_t> sum;
  } context{buffer.data(), 0};
  const auto chunks = static_cast<int64_t>(buffer.bytes() / kChunk);
  device.parallel_for(
      chunks,
      [](void* self, int64_t chunk, int32_t) {
        constexpr size_t kPage = 4096 / 8;  // a write to each: real pages, not the zero page
        uint64_t* data = static_cast<Context*>(self)->data + chunk * (kChunk / 8);
        for (size_t i = 0; i < kChunk / 8; i += kPage) data[i] = i + 1;
      },
      &context);
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double start = now();
    device.parallel_for(
        chunks,
        [](void* self, int64_t chunk, int32_t) {
          auto& c = *static_cast<Context*>(self);
          const uint64_t sum = read_stream(c.data + chunk * (kChunk / 8), kChunk / 8);
          c.sum.fetch_add(sum, std::memory_order_relaxed);  // so that the reads are needed
        },
        &context);
    best = std::max(best,
                    static_cast<double>(chunks * static_cast<int64_t>(kChunk)) / (now() - start));
  }
  return best;
}

}  // namespace

Status measure_cpu_roofs(Device& device, runmax_roofs& roofs) {
  roofs.threads = device.info().max_threads;
  roofs.flops_per_second = measure_flops(device);
  roofs.bytes_per_second = measure_bandwidth(device);
  if (roofs.bytes_per_second > 0) return Status::ok();
  return {RUNMAX_OUT_OF_MEMORY, "bytes_per_second",
          "bytes_per_second: could not be measured, needs a buffer of 8 MiB at least"};
}

}  // namespace runmax
