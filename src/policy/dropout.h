// Which weights dropout keeps: Philox-4x32-10 on positions, so that the mask is the same on every
// backend, for every tiling, in forward, backward and the oracle.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/philox.h"

namespace runmax::policy {

struct Dropout {
  uint64_t seed = 0;
  uint64_t offset = 0;
  uint64_t threshold = 0;  // floor(p * 2^32): keep iff word >= threshold; 2^32 drops everything
  double keep_scale = 1;   // 1 / (1 - p); 0 when p = 1
  bool active = false;

  static Dropout make(double p, uint64_t seed, uint64_t offset) {
    Dropout d;
    d.seed = seed;
    d.offset = offset;
    d.active = p > 0;
    d.threshold = static_cast<uint64_t>(p * 4294967296.0);
    d.keep_scale = p < 1 ? 1 / (1 - p) : 0;
    return d;
  }

  // The words of keys 4*kv_quad ... 4*kv_quad + 3 of one row.
  RUNMAX_INLINE PhiloxBlock words(uint32_t batch_head, uint32_t q, uint32_t kv_quad) const {
    return philox_4x32_10({{kv_quad, q, batch_head, static_cast<uint32_t>(offset)}},
                          {{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32) ^
                                                             static_cast<uint32_t>(offset >> 32)}});
  }
  RUNMAX_INLINE bool keep(uint32_t word) const { return word >= threshold; }
};

}  // namespace runmax::policy
