// The plain three-step computation in storage precision: the scores of a (batch, head) are written
// to a q_len x kv_len matrix, turned into probabilities there, and multiplied with v. It is what
// attention without tiling does, done well: blocked products, several threads, exp rounded
// correctly, probabilities rounded to the type of q, one rounding of the output. Tests hold the
// kernels to twice its error; the demo times it and reports its memory.
#pragma once

#include <cstdint>

#include "runmax/runmax.h"

namespace runmax::reference {

struct PlainOptions {
  int threads = 1;
  uint64_t memory_limit = 0;  // bytes beyond inputs and outputs; 0 = whatever can be allocated
};

// Bytes that plain_forward() needs beyond inputs and outputs: one score matrix of the longest
// sequence, and one head's q, k, v and out as the product wants them. Of args only lengths are
// read.
uint64_t plain_memory(const runmax_problem& problem, const runmax_args& args);

// Writes out, and lse and lse_lo where the problem has them, through the caller's strides.
// false: the memory could not be had, or exceeds the limit; nothing was written.
bool plain_forward(const runmax_problem& problem, const runmax_args& args,
                   const PlainOptions& options = {});

// The gradients, by the same means: probabilities and the gradients of scores are matrices,
// computed in F32 and rounded to the type of q where they are multiplied; delta comes from out in
// its type, as a backward kernel is given it; one rounding of each gradient. Reads neither out nor
// lse. Values that are not finite spread to neighbours.
uint64_t plain_backward_memory(const runmax_problem& problem, const runmax_args& args);
bool plain_backward(const runmax_problem& problem, const runmax_args& args,
                    const PlainOptions& options = {});

}  // namespace runmax::reference
