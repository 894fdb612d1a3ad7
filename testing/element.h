// Elements of any dtype as doubles, and random numbers that are the same on every machine: integer
// arithmetic and exact conversions only, no libm.
#pragma once

#include <cstdint>

#include "runmax/runmax.h"

namespace runmax::testing {

// `index` counts elements from `base`. BOOL and I32 are numbers too.
double load(runmax_dtype dtype, const void* base, int64_t index);
// Rounds to nearest, ties to even; overflow gives inf. The double is rounded once.
void store(runmax_dtype dtype, void* base, int64_t index, double value);

// What `store` keeps of a value.
double rounded(runmax_dtype dtype, double value);

// A random 64-bit word of (seed, counter).
inline uint64_t random_word(uint64_t seed, uint64_t counter) {
  uint64_t z = seed * 0xd1342543de82ef95u + (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// In [0, 1).
inline double random_unit(uint64_t seed, uint64_t counter) {
  return static_cast<double>(random_word(seed, counter) >> 11) * 0x1p-53;
}

// Mean 0, variance 1, within +-6: the sum of twelve uniform numbers of ten bits.
inline double random_normal(uint64_t seed, uint64_t counter) {
  const uint64_t a = random_word(seed, 2 * counter), b = random_word(seed, 2 * counter + 1);
  int64_t sum = 0;
  for (int shift = 0; shift < 60; shift += 10) {
    sum += static_cast<int64_t>(a >> shift & 1023) + static_cast<int64_t>(b >> shift & 1023);
  }
  // The variance of one term is (1024^2 - 1) / 12, of twelve 1024^2 - 1; the mean is 12 * 511.5.
  return static_cast<double>(sum - 6138) * (1.0 / 1023.9995117186);
}

// In [0, bound); bound >= 1.
inline int64_t random_below(uint64_t seed, uint64_t counter, int64_t bound) {
  return static_cast<int64_t>(random_word(seed, counter) % static_cast<uint64_t>(bound));
}

}  // namespace runmax::testing
