// Philox-4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011):
// a counter and a key give four independent words, so that a dropout mask depends on positions
// alone, never on tiles, threads or backend.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace runmax {

struct PhiloxBlock {
  uint32_t word[4];
};

struct PhiloxKey {
  uint32_t word[2];
};

RUNMAX_INLINE constexpr PhiloxBlock philox_round(const PhiloxBlock& x, const PhiloxKey& key) {
  const uint64_t product0 = uint64_t{0xD2511F53u} * x.word[0];
  const uint64_t product1 = uint64_t{0xCD9E8D57u} * x.word[2];
  return {{static_cast<uint32_t>(product1 >> 32) ^ x.word[1] ^ key.word[0],
           static_cast<uint32_t>(product1),
           static_cast<uint32_t>(product0 >> 32) ^ x.word[3] ^ key.word[1],
           static_cast<uint32_t>(product0)}};
}

RUNMAX_INLINE constexpr PhiloxBlock philox_4x32_10(PhiloxBlock counter, PhiloxKey key) {
  constexpr int kRounds = 10;
  constexpr uint32_t kGolden = 0x9E3779B9u;  // Weyl constants: 2^32 over the golden ratio,
  constexpr uint32_t kSqrt3 = 0xBB67AE85u;   // and sqrt(3) - 1
  for (int round = 0; round < kRounds; ++round) {
    if (round > 0) {
      key.word[0] += kGolden;
      key.word[1] += kSqrt3;
    }
    counter = philox_round(counter, key);
  }
  return counter;
}

}  // namespace runmax
