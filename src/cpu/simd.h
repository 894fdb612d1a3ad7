// The thin SIMD layer: GCC vector types of one ISA's width, and the few operations that operators
// do not give. Everything lives in the namespace of the ISA that the including file is compiled
// for, and nothing here comes from std, so that no symbol of an ISA object can replace a baseline
// one.
#pragma once

#ifndef RUNMAX_CPU_ISA
#error "define RUNMAX_CPU_ISA: this header belongs to one instruction set at a time"
#endif

#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "core/host_device.h"
#include "policy/score.h"

namespace runmax::cpu::RUNMAX_CPU_ISA {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

template <class T>
struct Lanes;  // the integer type of T's width, and T's constants for exp
template <>
struct Lanes<float> {
  using Int = int32_t;
  using Wide = double;  // for the few things that are done once per row
};
template <>
struct Lanes<double> {
  using Int = int64_t;
  using Wide = long double;
};

template <class T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

template <class T>
struct VecOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
  typedef T unaligned __attribute__((vector_size(kVectorBytes), aligned(alignof(T)), may_alias));
};
template <class T>
using Vec = typename VecOf<T>::type;
template <class T>
using MaskVec = Vec<typename Lanes<T>::Int>;  // lanes are 0 or -1

template <class T>
RUNMAX_INLINE Vec<T> load(const T* p) {
  return *reinterpret_cast<const typename VecOf<T>::unaligned*>(p);
}
template <class T>
RUNMAX_INLINE void store(T* p, Vec<T> v) {
  *reinterpret_cast<typename VecOf<T>::unaligned*>(p) = v;
}
RUNMAX_INLINE Vec<float> broadcast(float x) {
#if defined(__AVX512F__)
  return _mm512_set1_ps(x);
#elif defined(__AVX2__)
  return _mm256_set1_ps(x);
#else
  return Vec<float>{x, x, x, x};
#endif
}
RUNMAX_INLINE Vec<double> broadcast(double x) {
#if defined(__AVX512F__)
  return _mm512_set1_pd(x);
#elif defined(__AVX2__)
  return _mm256_set1_pd(x);
#else
  return Vec<double>{x, x};
#endif
}

// a * b + c, fused where the ISA can.
RUNMAX_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
RUNMAX_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}

// The larger; a NaN in b is dropped.
template <class V>
RUNMAX_INLINE V max_drop_nan(V a, V b) {
  return b > a ? b : a;
}

template <class T>
RUNMAX_INLINE T reduce_max(Vec<T> v) {
  T result = v[0];
  for (int i = 1; i < kLanes<T>; ++i) result = v[i] > result ? v[i] : result;
  return result;
}
// Pairwise, so that the order is fixed by the width alone.
template <class T>
RUNMAX_INLINE T reduce_add(Vec<T> v) {
  T part[kLanes<T>];
  store(part, v);
  for (int n = kLanes<T> / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) part[i] += part[i + n];
  }
  return part[0];
}
template <class M>
RUNMAX_INLINE bool any(M mask) {
  auto result = mask[0];
  for (int i = 1; i < static_cast<int>(sizeof(M) / sizeof(mask[0])); ++i) result |= mask[i];
  return result != 0;
}
// Lanes that hold NaN or an infinity.
template <class V>
RUNMAX_INLINE auto not_finite(V v) {
  return (v - v) != (v - v);
}

// exp(y) for y <= 0: e^y = 2^n * e^r with n = round(y / ln 2), |r| <= ln(2)/2, and the Taylor
// polynomial of e^r. Relative error below 1.5 ulp; exactly 1 at 0, exactly 0 where the result would
// be denormal (so for -inf), NaN for NaN.
RUNMAX_INLINE Vec<float> exp_nonpositive(Vec<float> y) {
  using V = Vec<float>;
  const V kMagic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const V clamped = y < -88.0f ? broadcast(-88.0f) : y;
  const V shifted = fma(clamped, broadcast(1.44269504088896341f), kMagic);
  const V n = shifted - kMagic;
  V r = fma(n, broadcast(-0.693359375f), clamped);  // ln 2 in two parts; the first has 9 bits
  r = fma(n, broadcast(2.12194440054690583e-4f), r);
  V p = fma(r, broadcast(1.0f / 5040), broadcast(1.0f / 720));
  p = fma(p, r, broadcast(1.0f / 120));
  p = fma(p, r, broadcast(1.0f / 24));
  p = fma(p, r, broadcast(1.0f / 6));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r * r, r) + 1.0f;
  typedef MaskVec<float> I;
  const I bits = reinterpret_cast<I>(p) + (reinterpret_cast<I>(shifted) << 23);
  const V result = reinterpret_cast<V>(bits);
  const V flushed = y < -87.33654f ? V{} : result;
  return y == y ? flushed : y;
}
RUNMAX_INLINE Vec<double> exp_nonpositive(Vec<double> y) {
  using V = Vec<double>;
  const V kMagic = broadcast(6755399441055744.0);  // 1.5 * 2^52
  const V clamped = y < -709.0 ? broadcast(-709.0) : y;
  const V shifted = fma(clamped, broadcast(1.44269504088896340736), kMagic);
  const V n = shifted - kMagic;
  V r = fma(n, broadcast(-0.693147180369123816490), clamped);
  r = fma(n, broadcast(-1.90821492927058770002e-10), r);
  V p = broadcast(1.0 / 6227020800.0);  // 1 / 13!
  constexpr double kInverseFactorial[] = {
      1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
      1.0 / 720,       1.0 / 120,      1.0 / 24,      1.0 / 6,      0.5};
  for (double c : kInverseFactorial) p = fma(p, r, broadcast(c));
  p = fma(p, r * r, r) + 1.0;
  typedef MaskVec<double> I;
  const I bits = reinterpret_cast<I>(p) + (reinterpret_cast<I>(shifted) << 52);
  const V result = reinterpret_cast<V>(bits);
  const V flushed = y < -708.396 ? V{} : result;
  return y == y ? flushed : y;
}
template <class T>
RUNMAX_INLINE T exp_nonpositive_scalar(T y) {
  return exp_nonpositive(broadcast(y))[0];
}

RUNMAX_INLINE double exp_wide(double x) { return __builtin_exp(x); }
RUNMAX_INLINE double log_wide(double x) { return __builtin_log(x); }
RUNMAX_INLINE long double exp_wide(long double x) { return __builtin_expl(x); }
RUNMAX_INLINE long double log_wide(long double x) { return __builtin_logl(x); }

}  // namespace runmax::cpu::RUNMAX_CPU_ISA

// Once per score and only under softcap: exactness before speed.
namespace runmax::policy {
template <>
struct Math<cpu::RUNMAX_CPU_ISA::Vec<float>> {
  using V = cpu::RUNMAX_CPU_ISA::Vec<float>;
  static RUNMAX_INLINE V tanh(V x) {
    for (int i = 0; i < cpu::RUNMAX_CPU_ISA::kLanes<float>; ++i) x[i] = __builtin_tanhf(x[i]);
    return x;
  }
};
template <>
struct Math<cpu::RUNMAX_CPU_ISA::Vec<double>> {
  using V = cpu::RUNMAX_CPU_ISA::Vec<double>;
  static RUNMAX_INLINE V tanh(V x) {
    for (int i = 0; i < cpu::RUNMAX_CPU_ISA::kLanes<double>; ++i) x[i] = __builtin_tanh(x[i]);
    return x;
  }
};
}  // namespace runmax::policy
