// One head of exact attention through the C API: plan once, run as often as wanted.
#pragma once

#include <cstdint>

#include "runmax/runmax.h"

namespace runmax::demo {

class Tiled {
 public:
  Tiled(int64_t length, int64_t head_dim, int threads, bool causal);
  ~Tiled();
  Tiled(const Tiled&) = delete;
  Tiled& operator=(const Tiled&) = delete;

  // q, k, v and out: [length, head_dim]
  void run(const float* q, const float* k, const float* v, float* out);

 private:
  runmax_device* device_ = nullptr;
  runmax_plan* plan_ = nullptr;
  void* workspace_ = nullptr;
};

}  // namespace runmax::demo
