// Rows between storage types and the type of arithmetic (float, or double for F64 problems).
#pragma once

#include "core/dtype.h"
#include "cpu/simd.h"
#include "runmax/runmax.h"

namespace runmax::cpu::RUNMAX_CPU_ISA {

template <class Stored, class T>
RUNMAX_INLINE void load_elements(const Stored* from, int64_t stride, int64_t count, T* to) {
  if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(to_float(from[i]));
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(to_float(from[i * stride]));
  }
}
template <>
RUNMAX_INLINE void load_elements(const double* from, int64_t stride, int64_t count, double* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
}

// to[i] = element (offset + i * stride) of a tensor.
template <class T>
inline void load_row(int32_t dtype, const void* pointer, int64_t offset, int64_t stride,
                     int64_t count, T* to) {
  switch (dtype) {
    case RUNMAX_F32:
      return load_elements(static_cast<const float*>(pointer) + offset, stride, count, to);
    case RUNMAX_BF16:
      return load_elements(static_cast<const Bf16*>(pointer) + offset, stride, count, to);
    case RUNMAX_F16:
      return load_elements(static_cast<const F16*>(pointer) + offset, stride, count, to);
    case RUNMAX_F64:
      if constexpr (sizeof(T) == sizeof(double)) {
        return load_elements(static_cast<const double*>(pointer) + offset, stride, count, to);
      }
  }
}

template <class T>
RUNMAX_INLINE T load_scalar(int32_t dtype, const void* pointer, int64_t offset) {
  T value{};
  load_row<T>(dtype, pointer, offset, 1, 1, &value);
  return value;
}

// The one rounding of a result.
template <class T>
inline void store_row(int32_t dtype, void* pointer, int64_t offset, int64_t stride, int64_t count,
                      const T* from) {
  switch (dtype) {
    case RUNMAX_F32: {
      float* to = static_cast<float*>(pointer) + offset;
      for (int64_t i = 0; i < count; ++i) to[i * stride] = static_cast<float>(from[i]);
      return;
    }
    case RUNMAX_BF16: {
      Bf16* to = static_cast<Bf16*>(pointer) + offset;
      for (int64_t i = 0; i < count; ++i) to[i * stride] = to_bf16(static_cast<float>(from[i]));
      return;
    }
    case RUNMAX_F16: {
      F16* to = static_cast<F16*>(pointer) + offset;
      for (int64_t i = 0; i < count; ++i) to[i * stride] = to_f16(static_cast<float>(from[i]));
      return;
    }
    case RUNMAX_F64: {
      double* to = static_cast<double*>(pointer) + offset;
      for (int64_t i = 0; i < count; ++i) to[i * stride] = static_cast<double>(from[i]);
      return;
    }
  }
}

}  // namespace runmax::cpu::RUNMAX_CPU_ISA
