// The error gates of docs/numerics.md: holds buffers that a kernel wrote against the oracle. Every
// element is judged on its own; there are no means and no cosines. Used by tests and by
// `runmax check`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/backward.h"
#include "reference/oracle.h"
#include "runmax/runmax.h"

namespace runmax::testing {

struct Comparison {
  bool passed = true;
  int64_t compared = 0;     // elements looked at: 0 is no evidence
  double max_error = 0;     // largest |actual - expected| over finite elements
  double max_ratio = 0;     // largest error / gate; inf where the pattern of inf and nan is wrong
  double max_expected = 0;  // largest finite |expected|
  int64_t worst = -1;       // row-major number of the element with max_ratio
  double expected = 0;      // there
  double actual = 0;
  std::string message;  // one line about the worst element; empty if passed
};

// Each reads args' buffer through the strides of its tensor in `problem`. Rows that the oracle did
// not compute are passed over, and with RUNMAX_KEEP_UNUSED also rows of no sequence. The same
// functions judge merge, with the Forward of reference::merge.
Comparison compare_out(const runmax_problem& problem, const runmax_args& args,
                       const reference::Forward& expected);
Comparison compare_lse(const runmax_problem& problem, const runmax_args& args,
                       const reference::Forward& expected);
// Judges lse + lse_lo, and that lse_lo is no more than a rounding of lse. Needs both buffers.
Comparison compare_lse_lo(const runmax_problem& problem, const runmax_args& args,
                          const reference::Forward& expected);

// Every output that the problem has: the first failure, else the one with the largest ratio.
Comparison compare_all(const runmax_problem& problem, const runmax_args& args,
                       const reference::Forward& expected);

// A gradient by its name ("d_q"), held to its gate: elements that no visible pair reaches are +0.
Comparison compare_gradient(const char* name, const runmax_problem& problem,
                            const runmax_args& args, const reference::Backward& expected);
// The names of the gradients that a problem asks for.
std::vector<const char*> gradients_of(const runmax_problem& problem);
// All of them: the first failure, else the one with the largest ratio.
Comparison compare_gradients(const runmax_problem& problem, const runmax_args& args,
                             const reference::Backward& expected);

// The largest error allowed for one element.
double out_gate(const runmax_problem& problem, const reference::Forward& expected, int64_t element);
double lse_gate(const runmax_problem& problem, const reference::Forward& expected, int64_t row);
double lse_lo_gate(const runmax_problem& problem, const reference::Forward& expected, int64_t row);
double gradient_gate(runmax_dtype dtype, const reference::Gradient& expected, int64_t element);

// The family rule: over all outputs of a family of cases (4096 elements and more) the largest error
// is at most this, given the same of the plain computation and the largest |expected|.
double family_limit(runmax_dtype out, double plain_max_error, double max_expected);

}  // namespace runmax::testing
