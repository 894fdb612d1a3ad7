// Products of small dense tiles with register blocking: c = a * b. Every element of c is one chain
// of multiply-adds over k in rising order, whatever the block it falls into, so results do not
// depend on how rows are grouped.
#pragma once

#include "cpu/simd.h"

namespace runmax::cpu::RUNMAX_CPU_ISA {

// Rows x vectors of accumulators: with the b and a operands they fill the register file.
inline constexpr int kBlockRows = 6;
#if defined(__AVX512F__)
inline constexpr int kBlockVectors = 4;
#else
inline constexpr int kBlockVectors = 2;
#endif

// kTransposed: element (i, k) of a lies at a[k * a_stride + i].
template <class T, bool kTransposed, int kRows, int kVectors>
RUNMAX_INLINE void product_block(const T* a, int64_t a_stride, const T* b, int64_t b_stride, T* c,
                                 int64_t c_stride, int64_t k_len) {
  Vec<T> sum[kRows][kVectors] = {};
  for (int64_t k = 0; k < k_len; ++k) {
    Vec<T> b_k[kVectors];
    for (int v = 0; v < kVectors; ++v) b_k[v] = load(b + k * b_stride + v * kLanes<T>);
    for (int i = 0; i < kRows; ++i) {
      const Vec<T> a_ik = broadcast(kTransposed ? a[k * a_stride + i] : a[i * a_stride + k]);
      for (int v = 0; v < kVectors; ++v) sum[i][v] = fma(a_ik, b_k[v], sum[i][v]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) store(c + i * c_stride + v * kLanes<T>, sum[i][v]);
  }
}

template <class T, bool kTransposed, int kRows>
RUNMAX_INLINE void product_rows(const T* a, int64_t a_stride, const T* b, int64_t b_stride, T* c,
                                int64_t c_stride, int64_t k_len, int64_t columns) {
  constexpr int64_t kWide = kBlockVectors * kLanes<T>;
  int64_t n = 0;
  for (; n + kWide <= columns; n += kWide) {
    product_block<T, kTransposed, kRows, kBlockVectors>(a, a_stride, b + n, b_stride, c + n,
                                                        c_stride, k_len);
  }
  for (; n < columns; n += kLanes<T>) {
    product_block<T, kTransposed, kRows, 1>(a, a_stride, b + n, b_stride, c + n, c_stride, k_len);
  }
}

// a [rows, k_len] (kTransposed: [k_len, rows]), b [k_len, columns], c [rows, columns], row-major;
// columns is a multiple of the vector length.
template <class T, bool kTransposed = false>
inline void tile_product(int64_t rows, int64_t columns, int64_t k_len, const T* a, int64_t a_stride,
                         const T* b, int64_t b_stride, T* c, int64_t c_stride) {
  const int64_t a_step = kTransposed ? 1 : a_stride;
  int64_t i = 0;
  for (; i + kBlockRows <= rows; i += kBlockRows) {
    product_rows<T, kTransposed, kBlockRows>(a + i * a_step, a_stride, b, b_stride,
                                             c + i * c_stride, c_stride, k_len, columns);
  }
  for (; i + 2 <= rows; i += 2) {
    product_rows<T, kTransposed, 2>(a + i * a_step, a_stride, b, b_stride, c + i * c_stride,
                                    c_stride, k_len, columns);
  }
  if (i < rows) {
    product_rows<T, kTransposed, 1>(a + i * a_step, a_stride, b, b_stride, c + i * c_stride,
                                    c_stride, k_len, columns);
  }
}

}  // namespace runmax::cpu::RUNMAX_CPU_ISA
