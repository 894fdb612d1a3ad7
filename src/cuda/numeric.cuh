// Scalars on the device: loads and stores by type, and the functions whose accuracy the gates need.
#pragma once

#include "core/dtype.h"
#include "cuda/forward_params.h"
#include "runmax/runmax.h"

namespace runmax::cuda {

template <class T>
inline constexpr T kMinusInfinity = -static_cast<T>(__builtin_inff());

__device__ __forceinline__ float exp_of(float x) { return expf(x); }
__device__ __forceinline__ double exp_of(double x) { return exp(x); }
__device__ __forceinline__ float max_of(float a, float b) { return fmaxf(a, b); }  // drops a NaN
__device__ __forceinline__ double max_of(double a, double b) { return fmax(a, b); }

template <class T>
__device__ __forceinline__ bool finite(T x) {
  return x - x == T{0};
}

// What to subtract from scores whose maximum is m: while all scores are -inf, anything finite.
template <class T>
__device__ __forceinline__ T safe_max(T m) {
  return m == kMinusInfinity<T> ? T{0} : m;
}

template <class T>
__device__ __forceinline__ T load_as(const float* p) {
  return static_cast<T>(*p);
}
template <class T>
__device__ __forceinline__ T load_as(const double* p) {
  return static_cast<T>(*p);
}
template <class T>
__device__ __forceinline__ T load_as(const Bf16* p) {
  return static_cast<T>(to_float(*p));
}
template <class T>
__device__ __forceinline__ T load_as(const F16* p) {
  return static_cast<T>(to_float(*p));
}

template <class T>
__device__ __forceinline__ T load_scalar(int32_t dtype, const void* pointer, int64_t offset) {
  switch (dtype) {
    case RUNMAX_BF16:
      return load_as<T>(static_cast<const Bf16*>(pointer) + offset);
    case RUNMAX_F16:
      return load_as<T>(static_cast<const F16*>(pointer) + offset);
    case RUNMAX_F64:
      return load_as<T>(static_cast<const double*>(pointer) + offset);
    default:
      return load_as<T>(static_cast<const float*>(pointer) + offset);
  }
}

// The one rounding of a result.
template <class T>
__device__ __forceinline__ void store_as(float* to, T x) {
  *to = static_cast<float>(x);
}
template <class T>
__device__ __forceinline__ void store_as(double* to, T x) {
  *to = static_cast<double>(x);
}
template <class T>
__device__ __forceinline__ void store_as(Bf16* to, T x) {
  *to = to_bf16(static_cast<float>(x));
}
template <class T>
__device__ __forceinline__ void store_as(F16* to, T x) {
  *to = to_f16(static_cast<float>(x));
}

template <class T>
__device__ __forceinline__ void store_scalar(int32_t dtype, void* pointer, int64_t offset, T x) {
  switch (dtype) {
    case RUNMAX_BF16:
      return store_as(static_cast<Bf16*>(pointer) + offset, x);
    case RUNMAX_F16:
      return store_as(static_cast<F16*>(pointer) + offset, x);
    case RUNMAX_F64:
      return store_as(static_cast<double*>(pointer) + offset, x);
    default:
      return store_as(static_cast<float*>(pointer) + offset, x);
  }
}

// A row's end: what its sums become.
template <class T>
struct Finished {
  T out_scale;  // out = acc * out_scale
  T lse;
  T lse_lo;  // what rounding lse lost
};

// An empty row gives out 0 and lse -inf (with a sink: the sink). A visible key and a maximum of
// -inf or +inf, or a NaN score, give NaN.
template <class T>
__device__ inline Finished<T> finish_row(T max, T sum, bool seen, bool has_sink, T sink) {
  if (!seen) return {T{0}, has_sink ? sink : kMinusInfinity<T>, T{0}};
  if (max == kMinusInfinity<T>) {
    const T nan = max - max;
    return {nan, nan, nan};
  }
  double total = sum;
  double top = max;
  double weight = 1;
  if (has_sink && sink != kMinusInfinity<T>) {
    top = sink > max ? sink : max;
    weight = exp(static_cast<double>(max) - top);
    total = total * weight + exp(static_cast<double>(sink) - top);
  }
  const double log_total = log(total);
  const T lse = static_cast<T>(top + log_total);
  // Exact: |top - lse| is small beside either, or log_total is small beside top.
  const double rest =
      fabs(top) >= fabs(log_total) ? (top - lse) + log_total : (log_total - lse) + top;
  return {static_cast<T>(weight / total), lse, static_cast<T>(rest)};
}

// Writes the end of one row: lse and lse_lo.
template <class T>
__device__ inline void store_statistics(const ForwardParams& p, const Sequence& s, int64_t head,
                                        int64_t row, T lse, T lse_lo) {
  if (p.lse.present()) {
    store_scalar(p.lse.dtype, p.lse.pointer, policy::q_row_offset(p.lse, s, head, row), lse);
  }
  if (p.lse_lo.present()) {
    store_scalar(p.lse_lo.dtype, p.lse_lo.pointer, policy::q_row_offset(p.lse_lo, s, head, row),
                 lse_lo);
  }
}

}  // namespace runmax::cuda
