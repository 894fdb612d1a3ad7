// The body of each ISA object: instantiates the forward kernel and offers it as a table. Included
// once by <isa>.cc, after RUNMAX_CPU_ISA is set.
#pragma once

#include "cpu/forward.h"

namespace runmax::cpu::RUNMAX_CPU_ISA {

namespace {

bool is_f64(const ForwardParams& p) { return p.q.dtype == RUNMAX_F64; }

size_t scratch_bytes(const ForwardParams& p) {
  Carver carver(nullptr);
  if (is_f64(p)) {
    Scratch<double> measure(p, carver);
  } else {
    Scratch<float> measure(p, carver);
  }
  return carver.used();
}

void item(const ForwardParams& p, int64_t index, std::byte* scratch) {
  is_f64(p) ? run_item<double>(p, index, scratch) : run_item<float>(p, index, scratch);
}

void merge_item(const ForwardParams& p, int64_t index, std::byte* scratch) {
  is_f64(p) ? run_merge_item<double>(p, index, scratch) : run_merge_item<float>(p, index, scratch);
}

}  // namespace

extern const ForwardKernel forward_kernel;
const ForwardKernel forward_kernel = {scratch_bytes, item, merge_item};

}  // namespace runmax::cpu::RUNMAX_CPU_ISA
