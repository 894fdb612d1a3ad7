// Attention as three plain steps that write the whole score matrix to memory: what the demo
// compares time and memory with. Written to be a fair opponent: vectorised, blocked for registers
// and cache, as many threads as the other side. (reference/plain.h is the one for accuracy.)
#pragma once

#include <cstdint>

namespace runmax::demo {

inline constexpr int64_t kHeadDim = 64;

// q, k, v and out: [length, kHeadDim]. scores and probs: [length, length]. `length` is a multiple
// of 64.
void plain_attention(const float* q, const float* k, const float* v, int64_t length, float* scores,
                     float* probs, float* out, int threads);

}  // namespace runmax::demo
