// From a dot product to a score, and back: scale -> softcap -> + bias -> - ALiBi, in the order of
// docs/numerics.md. One text for a SIMD lane set, a GPU register and a scalar: V is the value type,
// S the type of its lanes. V needs +, -, *, / with V and S, and Math<V>.
#pragma once

#include "core/host_device.h"

namespace runmax::policy {

// The functions of V that operators do not give. Lane sets add their own specialisation.
template <class V>
struct Math;
template <>
struct Math<float> {
  static RUNMAX_INLINE float tanh(float x) { return __builtin_tanhf(x); }
};
template <>
struct Math<double> {
  static RUNMAX_INLINE double tanh(double x) { return __builtin_tanh(x); }
};
#ifndef __CUDA_ARCH__
template <>
struct Math<long double> {
  static RUNMAX_INLINE long double tanh(long double x) { return __builtin_tanhl(x); }
};
#endif

template <class S>
struct Score {
  S scale;
  S softcap;      // c in c*tanh(s/c); read only if has_softcap
  S alibi_slope;  // read only if has_alibi
  bool has_softcap;
  bool has_bias;
  bool has_alibi;

  // dot = q.k; distance = |q + offset - kv|; bias as given. Unused operands may hold anything.
  template <class V>
  RUNMAX_INLINE V forward(V dot, V distance, V bias) const {
    V s = dot * scale;
    if (has_softcap) s = Math<V>::tanh(s / softcap) * softcap;
    if (has_bias) s = s + bias;
    if (has_alibi) s = s - distance * alibi_slope;
    return s;
  }

  // The gradient of a dot product from that of its score: d_score times scale, and times
  // 1 - tanh^2 under softcap.
  template <class V>
  RUNMAX_INLINE V backward(V dot, V d_score) const {
    if (!has_softcap) return d_score * scale;
    const V t = Math<V>::tanh(dot * scale / softcap);
    return d_score * ((S(1) - t * t) * scale);
  }

  template <class To>
  RUNMAX_INLINE Score<To> as() const {
    return {static_cast<To>(scale),
            static_cast<To>(softcap),
            static_cast<To>(alibi_slope),
            has_softcap,
            has_bias,
            has_alibi};
  }
};

}  // namespace runmax::policy
