#include <algorithm>

#include "cuda/numeric.cuh"
#include "cuda/schedule.h"

namespace runmax::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 4096;  // grids stride over their items

// One block: every thread counts a run of sequences, then adds what the threads before it counted.
__global__ void __launch_bounds__(kThreads)
    list_tiles_kernel(const __grid_constant__ ForwardParams p, int64_t* tile_start) {
  __shared__ int64_t counts[kThreads];
  const int64_t each = (p.batch + 1 + kThreads - 1) / kThreads;
  const int64_t begin = threadIdx.x * each;
  const int64_t end = begin + each < p.batch + 1 ? begin + each : p.batch + 1;
  int64_t count = 0;
  for (int64_t b = begin; b < end; ++b) {
    count += (policy::sequence_of(p, b).q_len + p.q_tile - 1) / p.q_tile;
  }
  counts[threadIdx.x] = count;
  __syncthreads();
  int64_t at = 0;
  for (unsigned t = 0; t < threadIdx.x; ++t) at += counts[t];
  for (int64_t b = begin; b < end; ++b) {
    tile_start[b] = at;
    at += (policy::sequence_of(p, b).q_len + p.q_tile - 1) / p.q_tile;
  }
  if (begin < end && end == p.batch + 1) tile_start[end] = at;
}

// A warp takes a row of the item's tile; its lanes take columns.
template <class T>
__global__ void __launch_bounds__(kThreads)
    merge_splits_kernel(const __grid_constant__ ForwardParams p) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int64_t items = item_count(p) / p.num_splits;
  for (int64_t number = blockIdx.x; number < items; number += gridDim.x) {
    const WorkItem item = policy::work_item(p, number, 1);
    const Sequence s = policy::sequence_of(p, item.sequence);
    const int64_t row_begin = item.tile * p.q_tile;
    const int64_t end = row_begin + p.q_tile < s.q_len ? row_begin + p.q_tile : s.q_len;
    const bool has_sink = p.sink.present();
    for (int64_t row = row_begin + warp; row < end; row += kThreads / 32) {
      if (row >= s.q_used && p.keep_unused) break;
      const int64_t columns = partial_columns<T>(p.head_dim_v);
      T max = kMinusInfinity<T>;
      T sum = 0;
      bool seen = false;
      for (int32_t split = 0; row < s.q_used && split < p.num_splits; ++split) {
        const T* extra = partial_row<T>(p, s, item.head, row, split) + columns;
        if (extra[2] == T{0}) continue;
        seen = true;
        if (extra[0] > max) max = extra[0];
      }
      const T subtract = safe_max(max);
      for (int32_t split = 0; seen && split < p.num_splits; ++split) {
        const T* extra = partial_row<T>(p, s, item.head, row, split) + columns;
        if (extra[2] != T{0}) sum = fma(extra[1], exp_of(extra[0] - subtract), sum);
      }
      Finished<T> done{T{0}, kMinusInfinity<T>, T{0}};
      if (row < s.q_used) {
        const T sink =
            has_sink ? load_scalar<T>(p.sink.dtype, p.sink.pointer, item.head * p.sink.head) : T{0};
        done = finish_row(max, sum, seen, has_sink, sink);
      }
      const int64_t offset = policy::q_row_offset(p.out, s, item.head, row);
      for (int64_t d = lane; d < p.head_dim_v; d += 32) {
        T acc = 0;
        for (int32_t split = 0; seen && split < p.num_splits; ++split) {
          const T* from = partial_row<T>(p, s, item.head, row, split);
          if (from[columns + 2] == T{0}) continue;
          acc = fma(from[d], exp_of(from[columns] - subtract), acc);
        }
        store_scalar(p.out.dtype, p.out.pointer, offset + d * p.out.column,
                     seen ? fma(acc, done.out_scale, T{0}) : T{0});
      }
      if (lane == 0) store_statistics(p, s, item.head, row, done.lse, done.lse_lo);
    }
  }
}

}  // namespace

cudaError_t list_tiles(const ForwardParams& p, int64_t* tile_start, cudaStream_t stream) {
  list_tiles_kernel<<<1, kThreads, 0, stream>>>(p, tile_start);
  return cudaGetLastError();
}

cudaError_t merge_splits(const ForwardParams& p, int64_t items, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>(items, 1, kMaxBlocks));
  if (p.q.dtype == RUNMAX_F64) {
    merge_splits_kernel<double><<<blocks, kThreads, 0, stream>>>(p);
  } else {
    merge_splits_kernel<float><<<blocks, kThreads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

cudaError_t load_schedule() {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, list_tiles_kernel);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, merge_splits_kernel<float>);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, merge_splits_kernel<double>);
  return error;
}

}  // namespace runmax::cuda
