// The two roofs of this GPU's roofline, measured: plain multiply-adds and a stream of reads.
#include <algorithm>

#include "cuda/cuda_device.h"

namespace runmax::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kChains = 16;
constexpr int kSteps = 4096;
constexpr int kBlocksPerMultiprocessor = 4;
constexpr int kSamples = 9;

__global__ void __launch_bounds__(kThreads) multiply_add(float* out, float a, float b) {
  float x[kChains];
#pragma unroll
  for (int i = 0; i < kChains; ++i) x[i] = static_cast<float>(threadIdx.x + i);
#pragma unroll 1
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) x[i] = fmaf(x[i], a, b);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kChains; ++i) sum += x[i];
  if (sum == 12345.678f) *out = sum;  // never, but the compiler cannot know
}

__global__ void __launch_bounds__(kThreads)
    read_stream(const float4* from, int64_t count, float* out) {
  float sum = 0;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    float4 value[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) value[n] = __ldcs(from + i + n * stride);
#pragma unroll
    for (int n = 0; n < 4; ++n) sum += value[n].x + value[n].y + value[n].z + value[n].w;
  }
  if (sum == 12345.678f) *out = sum;
}

// Seconds of the fastest of several launches.
template <class Launch>
cudaError_t fastest(cudaEvent_t begin, cudaEvent_t end, Launch&& launch, double& seconds) {
  seconds = 1e30;
  for (int sample = -2; sample < kSamples; ++sample) {
    cudaEventRecord(begin);
    launch();
    cudaEventRecord(end);
    const cudaError_t error = cudaEventSynchronize(end);
    if (error != cudaSuccess) return error;
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    if (sample >= 0) seconds = std::min(seconds, milliseconds * 1e-3);
  }
  return cudaGetLastError();
}

cudaError_t measure(int multiprocessors, cudaEvent_t begin, cudaEvent_t end, float4* memory,
                    size_t bytes, double& flops, double& bandwidth) {
  const int blocks = multiprocessors * kBlocksPerMultiprocessor;
  float* out = reinterpret_cast<float*>(memory);
  double seconds = 0;
  cudaError_t error = cudaMemset(memory, 0x3f, bytes);
  if (error != cudaSuccess) return error;
  error = fastest(
      begin, end, [&] { multiply_add<<<blocks, kThreads>>>(out, 0.999f, 0.5f); }, seconds);
  if (error != cudaSuccess) return error;
  flops = 2.0 * kChains * kSteps * kThreads * blocks / seconds;
  const int64_t count = static_cast<int64_t>(bytes / sizeof(float4));
  error = fastest(
      begin, end, [&] { read_stream<<<blocks * 2, kThreads>>>(memory, count, out); }, seconds);
  bandwidth = static_cast<double>(bytes) / seconds;
  return error;
}

}  // namespace

cudaError_t measure_roofs(int multiprocessors, double& flops_per_second, double& bytes_per_second) {
  size_t free = 0;
  size_t total = 0;
  cudaError_t error = cudaMemGetInfo(&free, &total);
  if (error != cudaSuccess) return error;
  const size_t bytes = std::min(size_t{1} << 30, free / 2) & ~size_t{0xfff};  // well past any L2
  float4* memory = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  error = cudaMalloc(&memory, bytes);
  if (error == cudaSuccess) error = cudaEventCreate(&begin);
  if (error == cudaSuccess) error = cudaEventCreate(&end);
  if (error == cudaSuccess) {
    error = measure(multiprocessors, begin, end, memory, bytes, flops_per_second, bytes_per_second);
  }
  if (begin != nullptr) cudaEventDestroy(begin);
  if (end != nullptr) cudaEventDestroy(end);
  cudaFree(memory);
  return error;
}

}  // namespace runmax::cuda
