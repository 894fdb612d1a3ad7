#include <algorithm>

#include "cuda/numeric.cuh"
#include "cuda/schedule.h"

namespace runmax::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 4096;  // grids stride over their items

// starts[b] = sum over the sequences before b of ceil(rows / unit), for b in [0, count]. One block:
// every thread counts a run of sequences, then adds what the threads before it counted.
__device__ void list_starts(const ForwardParams& p, int64_t count, int64_t unit, int64_t* starts) {
  __shared__ int64_t counts[kThreads];
  const int64_t each = (count + kThreads - 1) / kThreads;
  const int64_t begin = threadIdx.x * each;
  const int64_t end = begin + each < count ? begin + each : count;
  const auto units = [&](int64_t b) { return (policy::sequence_of(p, b).q_len + unit - 1) / unit; };
  int64_t own = 0;
  for (int64_t b = begin; b < end; ++b) own += units(b);
  counts[threadIdx.x] = own;
  __syncthreads();
  int64_t at = 0;
  for (unsigned t = 0; t < threadIdx.x; ++t) at += counts[t];
  for (int64_t b = begin; b < end; ++b) {
    starts[b] = at;
    at += units(b);
  }
  if (begin < end && end == count) starts[count] = at;
}

__global__ void __launch_bounds__(kThreads)
    list_tiles_kernel(const __grid_constant__ ForwardParams p, int64_t* tile_start) {
  list_starts(p, p.batch + 1, p.q_tile, tile_start);
}

__global__ void __launch_bounds__(kThreads)
    list_block_starts_kernel(const __grid_constant__ ForwardParams p, int64_t* start) {
  list_starts(p, p.batch, p.blocks.block_q, start);
}

__device__ void sift_down(int32_t* heap, int64_t root, int64_t count) {
  const int32_t value = heap[root];
  while (2 * root + 1 < count) {
    int64_t child = 2 * root + 1;
    if (child + 1 < count && heap[child + 1] > heap[child]) ++child;
    if (heap[child] <= value) break;
    heap[root] = heap[child];
    root = child;
  }
  heap[root] = value;
}

// A thread takes a list. Lists that come sorted, as most do, are copied in one pass.
__global__ void __launch_bounds__(kThreads)
    list_blocks_kernel(runmax_tensor index, const int32_t* from, int64_t lists, int32_t* entries,
                       int32_t* counts) {
  const int last = index.rank - 1;
  const int64_t selected = index.shape[last];
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t list = int64_t{blockIdx.x} * kThreads + threadIdx.x; list < lists; list += stride) {
    int64_t offset = 0;
    int64_t rest = list;
    for (int d = last - 1; d >= 0; --d) {
      offset += rest % index.shape[d] * index.stride[d];
      rest /= index.shape[d];
    }
    int32_t* to = entries + list * selected;
    int64_t count = 0;
    bool sorted = true;
    for (int64_t i = 0; i < selected; ++i) {
      const int32_t block = from[offset + i * index.stride[last]];
      if (block < 0 || (count > 0 && block == to[count - 1])) continue;
      sorted &= count == 0 || block > to[count - 1];
      to[count++] = block;
    }
    if (!sorted) {  // heapsort
      for (int64_t root = count / 2; root-- > 0;) sift_down(to, root, count);
      for (int64_t end = count; end-- > 1;) {
        const int32_t largest = to[0];
        to[0] = to[end];
        to[end] = largest;
        sift_down(to, 0, end);
      }
      int64_t kept = 0;
      for (int64_t i = 0; i < count; ++i) {
        if (kept == 0 || to[i] != to[kept - 1]) to[kept++] = to[i];
      }
      count = kept;
    }
    counts[list] = static_cast<int32_t>(count);
  }
  if (lists == 0 && blockIdx.x == 0 && threadIdx.x == 0) counts[0] = 0;
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

cudaError_t list_blocks(const ForwardParams& p, const runmax_tensor& index, const int32_t* from,
                        int32_t* entries, int32_t* counts, int64_t* start, cudaStream_t stream) {
  const int64_t blocks = std::clamp<int64_t>(p.blocks.lists / kThreads + 1, 1, kMaxBlocks);
  list_blocks_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      index, from, p.blocks.lists, entries, counts);
  if (p.packed) list_block_starts_kernel<<<1, kThreads, 0, stream>>>(p, start);
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
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, list_blocks_kernel);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, list_block_starts_kernel);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, merge_splits_kernel<float>);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, merge_splits_kernel<double>);
  return error;
}

}  // namespace runmax::cuda
