// The backward half of an ISA object, like forward_isa.h.
#pragma once

#include "cpu/backward.h"

namespace runmax::cpu::RUNMAX_CPU_ISA {

namespace {

bool is_f64(const BackwardParams& b) { return b.forward.q.dtype == RUNMAX_F64; }

size_t backward_scratch_bytes(const BackwardParams& b) {
  Carver carver(nullptr);
  if (is_f64(b)) {
    BackwardScratch<double> measure(b, carver);
  } else {
    BackwardScratch<float> measure(b, carver);
  }
  return carver.used();
}

void row_terms(const BackwardParams& b, int64_t index, std::byte* scratch) {
  is_f64(b) ? run_row_terms<double>(b, index, scratch) : run_row_terms<float>(b, index, scratch);
}
void keys(const BackwardParams& b, int64_t index, std::byte* scratch) {
  is_f64(b) ? run_keys<double>(b, index, scratch) : run_keys<float>(b, index, scratch);
}
void queries(const BackwardParams& b, int64_t index, std::byte* scratch) {
  is_f64(b) ? run_queries<double>(b, index, scratch) : run_queries<float>(b, index, scratch);
}
void bias(const BackwardParams& b, int64_t index, std::byte* scratch) {
  is_f64(b) ? BiasItem<double>(b, index, scratch).run() : BiasItem<float>(b, index, scratch).run();
}
void head(const BackwardParams& b, int64_t index, std::byte* scratch) {
  is_f64(b) ? run_head<double>(b, index, scratch) : run_head<float>(b, index, scratch);
}

}  // namespace

extern const BackwardKernel backward_kernel;
const BackwardKernel backward_kernel = {
    backward_scratch_bytes, row_terms, keys, queries, bias, head};

}  // namespace runmax::cpu::RUNMAX_CPU_ISA
