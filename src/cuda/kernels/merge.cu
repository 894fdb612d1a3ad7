// Merge: results of attention over disjoint sets of keys become the result over their union.
//
//   M = max_i lse_i;  w_i = exp(lse_i - M);  out = sum_i w_i out_i / sum_i w_i;  lse = M + log(sum)
//
// A part with lse -inf saw no key and is ignored, whatever its out holds. In double, in the order
// of the parts: one rounding per result. A warp takes a row, its lanes take columns.
#include <algorithm>

#include "cuda/forward_launch.h"
#include "cuda/kernel_launch.h"
#include "cuda/numeric.cuh"

namespace runmax::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 4096;

// Strides of a per-row tensor; `part` is the first, where there is one.
struct Rows {
  void* pointer;
  int32_t dtype;
  int64_t part, batch, head, row, column;
};

struct MergeParams {
  Rows out, lse, lse_lo, partial_out, partial_lse;
  int64_t rows, q_heads, q_len, columns, parts;  // rows = batch * q_heads * q_len, or packed
};

__device__ int64_t offset(const Rows& x, int64_t batch, int64_t head, int64_t q) {
  return batch * x.batch + head * x.head + q * x.row;
}

__global__ void __launch_bounds__(kThreads) merge_kernel(const __grid_constant__ MergeParams p) {
  const int lane = threadIdx.x % 32;
  const int64_t warps = int64_t{gridDim.x} * (kThreads / 32);
  for (int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32; row < p.rows;
       row += warps) {
    const int64_t q = row % p.q_len;
    const int64_t head = row / p.q_len % p.q_heads;
    const int64_t batch = row / p.q_len / p.q_heads;
    const int64_t lse_at = offset(p.partial_lse, batch, head, q);
    const auto lse_of = [&](int64_t i) {
      return load_scalar<double>(p.partial_lse.dtype, p.partial_lse.pointer,
                                 lse_at + i * p.partial_lse.part);
    };
    double top = kMinusInfinity<double>;
    bool nan = false;
    for (int64_t i = 0; i < p.parts; ++i) {
      const double lse = lse_of(i);
      nan |= lse != lse || lse == -kMinusInfinity<double>;
      if (lse > top) top = lse;
    }
    const bool empty = top == kMinusInfinity<double> && !nan;
    double sum = 0;
    for (int64_t i = 0; i < p.parts && !empty; ++i) sum += exp(lse_of(i) - top);

    const int64_t out = offset(p.out, batch, head, q);
    const int64_t from = offset(p.partial_out, batch, head, q);
    const double nothing = nan ? top * 0 + (kMinusInfinity<double> - kMinusInfinity<double>) : 0;
    for (int64_t d = lane; d < p.columns; d += 32) {
      double value = nothing;
      for (int64_t i = 0; i < p.parts && !empty && !nan; ++i) {
        const double lse = lse_of(i);
        if (lse == kMinusInfinity<double>) continue;
        const double part =
            load_scalar<double>(p.partial_out.dtype, p.partial_out.pointer,
                                from + i * p.partial_out.part + d * p.partial_out.column);
        value = fma(exp(lse - top) / sum, part, value);
      }
      store_scalar(p.out.dtype, p.out.pointer, out + d * p.out.column, value);
    }
    if (lane != 0) continue;
    const double log_sum = log(sum);
    const double lse = nan ? nothing : (empty ? top : top + log_sum);
    const double rounded =
        p.lse.dtype == RUNMAX_F64 ? lse : static_cast<double>(static_cast<float>(lse));
    // What rounding lost, the rounding of the double included.
    const double rest =
        fabs(top) >= fabs(log_sum) ? (top - rounded) + log_sum : (log_sum - rounded) + top;
    if (p.lse.pointer != nullptr) {
      store_scalar(p.lse.dtype, p.lse.pointer, offset(p.lse, batch, head, q), lse);
    }
    if (p.lse_lo.pointer != nullptr) {
      store_scalar(p.lse_lo.dtype, p.lse_lo.pointer, offset(p.lse_lo, batch, head, q),
                   nan ? nothing : (empty ? 0 : rest));
    }
  }
}

// parts: 1 if the tensor's first dimension counts them.
Rows rows_of(const runmax_tensor& t, const void* pointer, bool packed, int parts, bool columns) {
  Rows x{};
  if (!Problem::present(t)) return x;
  x.pointer = const_cast<void*>(pointer);
  x.dtype = t.dtype;
  x.part = parts == 1 ? t.stride[0] : 0;
  const int64_t* stride = t.stride + parts;
  if (packed) {
    x.head = stride[columns ? 1 : 0];
    x.row = stride[columns ? 0 : 1];
  } else {
    x.batch = stride[0];
    x.head = stride[1];
    x.row = stride[2];
  }
  if (columns) x.column = t.stride[t.rank - 1];
  return x;
}

}  // namespace

const char* merge_cuda_supports(const Problem& problem, const DeviceInfo&) {
  if (Problem::present(problem.raw.d_partial_out) || Problem::present(problem.raw.d_partial_lse)) {
    return "d_partial_out: the gradients of merge have no kernel yet";
  }
  return nullptr;
}

Config merge_cuda_configure(const Problem&, const DeviceInfo&, Workspace&) { return {}; }

double merge_cuda_cost(const Problem&, const DeviceInfo&, const Config&) { return 0; }

cudaError_t merge_cuda_load() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, merge_kernel);
}

Status merge_cuda_launch(const Launch& launch) {
  const Problem& problem = launch.problem;
  const runmax_problem& raw = problem.raw;
  const runmax_args& args = launch.args;
  const bool packed = raw.out.rank == 3;
  MergeParams p{};
  p.out = rows_of(raw.out, args.out, packed, 0, true);
  p.lse = rows_of(raw.lse, args.lse, packed, 0, false);
  p.lse_lo = rows_of(raw.lse_lo, args.lse_lo, packed, 0, false);
  p.partial_out = rows_of(raw.partial_out, args.partial_out, packed, 1, true);
  p.partial_lse = rows_of(raw.partial_lse, args.partial_lse, packed, 1, false);
  p.rows = problem.q_heads * problem.total_q;
  p.q_heads = problem.q_heads;
  p.q_len = packed ? problem.total_q : problem.q_len;
  p.columns = raw.out.shape[raw.out.rank - 1];
  p.parts = problem.num_partials;
  if (p.rows == 0) return Status::ok();
  const int64_t blocks = std::min((p.rows + kThreads / 32 - 1) / (kThreads / 32), kMaxBlocks);
  merge_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(launch)>>>(p);
  return status_of(cudaGetLastError(), "merge");
}

}  // namespace runmax::cuda
