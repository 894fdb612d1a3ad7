#include "plain.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#if defined(__x86_64__)
// One version per instruction set; the loader picks the best that the machine has.
#define RUNMAX_DEMO_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define RUNMAX_DEMO_CLONES
#endif

namespace runmax::demo {
namespace {

constexpr int64_t kRows = 8;    // rows of a register block
constexpr int64_t kLanes = 16;  // columns of a register block: one vector
constexpr int64_t kKeys = 64;   // keys that are transposed at a time

typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

// scores[rows, :] = scale * q[rows] k^T
RUNMAX_DEMO_CLONES void score_rows(const float* q, const float* k, int64_t length, int64_t begin,
                                   int64_t end, float* scores) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
  alignas(64) float transposed[kHeadDim][kKeys];
  for (int64_t j = 0; j < length; j += kKeys) {
    for (int64_t key = 0; key < kKeys; ++key) {
      for (int64_t d = 0; d < kHeadDim; ++d)
        transposed[d][key] = scale * k[(j + key) * kHeadDim + d];
    }
    for (int64_t i = begin; i < end; i += kRows) {
      for (int64_t c = 0; c < kKeys; c += kLanes) {
        Lanes sum[kRows] = {};
        for (int64_t d = 0; d < kHeadDim; ++d) {
          const Lanes keys = *reinterpret_cast<const Lanes*>(&transposed[d][c]);
          for (int64_t r = 0; r < kRows; ++r) sum[r] += q[(i + r) * kHeadDim + d] * keys;
        }
        for (int64_t r = 0; r < kRows; ++r) {
          *reinterpret_cast<Lanes*>(&scores[(i + r) * length + j + c]) = sum[r];
        }
      }
    }
  }
}

// probs[rows, :] = softmax(scores[rows, :])
RUNMAX_DEMO_CLONES void softmax_rows(int64_t length, int64_t begin, int64_t end,
                                     const float* scores, float* probs) {
  for (int64_t i = begin; i < end; ++i) {
    const float* s = scores + i * length;
    float* p = probs + i * length;
    const float largest = *std::max_element(s, s + length);
    float sum = 0;
    for (int64_t j = 0; j < length; ++j) {
      p[j] = std::exp(s[j] - largest);
      sum += p[j];
    }
    for (int64_t j = 0; j < length; ++j) p[j] /= sum;
  }
}

// out[rows] = probs[rows, :] v
RUNMAX_DEMO_CLONES void output_rows(const float* v, int64_t length, int64_t begin, int64_t end,
                                    const float* probs, float* out) {
  constexpr int64_t kBlock = 256;  // keys whose v stays in cache while the rows pass by
  std::fill(out + begin * kHeadDim, out + end * kHeadDim, 0.0f);
  for (int64_t first = 0; first < length; first += kBlock) {
    const int64_t last = std::min(first + kBlock, length);
    for (int64_t i = begin; i < end; i += kRows) {
      for (int64_t c = 0; c < kHeadDim; c += kLanes) {
        Lanes sum[kRows];
        for (int64_t r = 0; r < kRows; ++r) {
          sum[r] = *reinterpret_cast<const Lanes*>(&out[(i + r) * kHeadDim + c]);
        }
        for (int64_t j = first; j < last; ++j) {
          const Lanes values = *reinterpret_cast<const Lanes*>(&v[j * kHeadDim + c]);
          for (int64_t r = 0; r < kRows; ++r) sum[r] += probs[(i + r) * length + j] * values;
        }
        for (int64_t r = 0; r < kRows; ++r) {
          *reinterpret_cast<Lanes*>(&out[(i + r) * kHeadDim + c]) = sum[r];
        }
      }
    }
  }
}

}  // namespace

void plain_attention(const float* q, const float* k, const float* v, int64_t length, float* scores,
                     float* probs, float* out, int threads) {
  const auto run = [=](int64_t begin, int64_t end) {
    score_rows(q, k, length, begin, end, scores);
    softmax_rows(length, begin, end, scores, probs);
    output_rows(v, length, begin, end, probs, out);
  };
  const int64_t share = (length / kRows + threads - 1) / threads * kRows;
  std::vector<std::thread> helpers;
  for (int64_t begin = share; begin < length; begin += share) {
    helpers.emplace_back(run, begin, std::min(begin + share, length));
  }
  run(0, std::min(share, length));
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace runmax::demo
