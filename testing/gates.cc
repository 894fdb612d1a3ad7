#include "testing/gates.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "reference/number.h"

namespace runmax::testing {
namespace {

using reference::accumulator_type;
using reference::Forward;
using reference::unit_roundoff;

// The constants of docs/numerics.md, section "The error gates". They were derived there before any
// kernel was measured; they do not depend on lengths.
constexpr double kOutRounding = 1.25;   // c1: one rounding of out
constexpr double kProbRounding = 1.25;  // c2: one rounding of each probability to 16 bits
constexpr double kScore = 1;            // c3: E_ij is a bound already
constexpr double kOutSum = 64;          // c4: the sums over keys, numerator and denominator
constexpr double kLseSum = 32;          // c4 of lse: the denominator and its logarithm
constexpr double kLseRounding = 4;      // c1 of lse: conversion between logarithms, and a rounding

constexpr double kInf = std::numeric_limits<double>::infinity();

runmax_dtype input_type(const runmax_problem& problem) {
  return problem.op == RUNMAX_MERGE ? problem.partial_out.dtype : problem.q.dtype;
}

// What the sums are computed in: lse has that type, for every op.
double accumulator_roundoff(const runmax_problem& problem) {
  return unit_roundoff(problem.op == RUNMAX_MERGE ? problem.partial_lse.dtype
                                                  : accumulator_type(problem.q.dtype));
}

// Half the spacing of the type's numbers round a value, at most.
double rounding(runmax_dtype dtype, double value) {
  return std::max(unit_roundoff(dtype) * std::fabs(value), reference::format(dtype).tiny / 2);
}

// Which row (element of lse) an element of out belongs to.
int64_t row_of(const runmax_problem& problem, const Forward& expected, int64_t element) {
  const int64_t out_row = element / expected.head_dim_v();
  if (problem.out.rank != 3) return out_row;
  const int64_t tokens = problem.out.shape[0], heads = problem.out.shape[1];
  return out_row % heads * tokens + out_row / heads;
}

std::string index_text(const runmax_tensor& tensor, int64_t number) {
  std::string text = "]";
  for (int d = tensor.rank - 1; d >= 0; --d) {
    text = std::to_string(number % tensor.shape[d]) + text;
    number /= tensor.shape[d];
    if (d > 0) text = ", " + text;
  }
  return "[" + text;
}

std::string format_text(const char* format, double a, double b, double c, double d) {
  char text[256];
  std::snprintf(text, sizeof text, format, a, b, c, d);
  return text;
}

class Comparer {
 public:
  Comparer(const char* name, const runmax_tensor& tensor) : name_(name), tensor_(tensor) {}

  // Holds one element to its gate. `loose`: a non-finite result is allowed too.
  void check(int64_t element, double actual, double expected, double gate, bool loose) {
    ++result_.compared;
    double ratio = kInf;
    if (std::isnan(expected)) {
      if (std::isnan(actual)) ratio = 0;
    } else if (std::isinf(expected)) {
      // An infinity in v has to show; whether as inf or nan depends on whether its weight is 0.
      if (actual == expected || std::isnan(actual)) ratio = 0;
    } else if (!std::isfinite(actual)) {
      const double largest = reference::format(tensor_.dtype).max_finite;
      const bool overflow = std::isinf(actual) && (actual > 0) == (expected > 0) &&
                            std::fabs(expected) + gate > largest;
      if (loose || overflow) ratio = 0;
    } else {
      const double error = std::fabs(actual - expected);
      ratio = error == 0 ? 0 : error / gate;
      result_.max_error = std::max(result_.max_error, error);
      result_.max_expected = std::max(result_.max_expected, std::fabs(expected));
    }
    note(element, actual, expected, gate, std::isnan(ratio) ? kInf : ratio);
  }

  // Holds one element to an exact value; 0 has to be +0.
  void check_exact(int64_t element, double actual, double expected) {
    ++result_.compared;
    const bool same = std::isnan(expected)
                          ? std::isnan(actual)
                          : actual == expected && std::signbit(actual) == std::signbit(expected);
    note(element, actual, expected, 0, same ? 0 : kInf);
  }

  Comparison result() { return std::move(result_); }

 private:
  void note(int64_t element, double actual, double expected, double gate, double ratio) {
    if (ratio > result_.max_ratio || result_.worst < 0) {
      result_.max_ratio = ratio;
      result_.worst = element;
      result_.expected = expected;
      result_.actual = actual;
      if (!(ratio <= 1)) {
        result_.passed = false;
        result_.message = std::string(name_) + index_text(tensor_, element) +
                          format_text(": is %.9g, must be %.9g (error %.3g, gate %.3g)", actual,
                                      expected, std::fabs(actual - expected), gate);
      }
    }
  }

  const char* name_;
  const runmax_tensor& tensor_;
  Comparison result_;
};

bool passed_over(const runmax_problem& problem, const Forward& expected, size_t row) {
  return expected.row_computed[row] == 0 ||
         (expected.row_used[row] == 0 && (problem.flags & RUNMAX_KEEP_UNUSED) != 0);
}

double element(const runmax_tensor& tensor, const void* data, int64_t number) {
  return reference::load(tensor.dtype, data, reference::element_offset(tensor, number));
}

}  // namespace

double out_gate(const runmax_problem& problem, const Forward& expected, int64_t element) {
  const auto at = static_cast<size_t>(element);
  const runmax_dtype type = input_type(problem);
  const bool narrow = type == RUNMAX_BF16 || type == RUNMAX_F16;
  const bool rounds_probs = narrow && problem.op != RUNMAX_MERGE;
  const double accumulate = accumulator_roundoff(problem);
  const double terms =
      (rounds_probs ? kProbRounding * unit_roundoff(type) : 0) + kOutSum * accumulate;
  return kOutRounding * rounding(problem.out.dtype, expected.out[at]) +
         terms * expected.out_terms[at] + kScore * accumulate * expected.out_score[at];
}

double lse_lo_gate(const runmax_problem& problem, const Forward& expected, int64_t row) {
  return accumulator_roundoff(problem) *
         (kLseSum + kScore * expected.lse_score[static_cast<size_t>(row)]);
}

double lse_gate(const runmax_problem& problem, const Forward& expected, int64_t row) {
  return lse_lo_gate(problem, expected, row) +
         kLseRounding * rounding(problem.lse.dtype, expected.lse[static_cast<size_t>(row)]);
}

Comparison compare_out(const runmax_problem& problem, const runmax_args& args,
                       const Forward& expected) {
  Comparer comparer("out", problem.out);
  for (size_t at = 0; at < expected.out.size(); ++at) {
    const auto number = static_cast<int64_t>(at);
    const auto row = static_cast<size_t>(row_of(problem, expected, number));
    if (passed_over(problem, expected, row)) continue;
    const double actual = element(problem.out, args.out, number);
    if (expected.row_keys[row] == 0) {
      comparer.check_exact(number, actual, 0);
    } else {
      comparer.check(number, actual, expected.out[at], out_gate(problem, expected, number),
                     expected.row_beyond[row] != 0);
    }
  }
  return comparer.result();
}

Comparison compare_lse(const runmax_problem& problem, const runmax_args& args,
                       const Forward& expected) {
  Comparer comparer("lse", problem.lse);
  for (size_t row = 0; row < expected.lse.size(); ++row) {
    if (passed_over(problem, expected, row)) continue;
    const auto number = static_cast<int64_t>(row);
    const double actual = element(problem.lse, args.lse, number);
    if (expected.row_keys[row] == 0) {
      comparer.check_exact(number, actual, expected.lse[row]);  // -inf, or the sink
    } else {
      comparer.check(number, actual, expected.lse[row], lse_gate(problem, expected, number),
                     expected.row_beyond[row] != 0);
    }
  }
  return comparer.result();
}

Comparison compare_lse_lo(const runmax_problem& problem, const runmax_args& args,
                          const Forward& expected) {
  Comparer comparer("lse_lo", problem.lse_lo);
  for (size_t row = 0; row < expected.lse.size(); ++row) {
    if (passed_over(problem, expected, row)) continue;
    const auto number = static_cast<int64_t>(row);
    const double lse = element(problem.lse, args.lse, number);
    const double lse_lo = element(problem.lse_lo, args.lse_lo, number);
    const bool loose = expected.row_beyond[row] != 0;
    if (expected.row_keys[row] == 0) {
      comparer.check_exact(number, lse_lo, 0);
    } else if (!std::isfinite(expected.lse[row]) || !std::isfinite(lse)) {
      comparer.check(number, lse_lo, expected.lse[row], 0, loose);
    } else {
      // In long double, so that an F64 lse does not swallow its own rest. The remainder that a
      // rounding of lse leaves is a separate condition: lse alone has to be good as well.
      const long double rest = static_cast<long double>(expected.lse[row]) - lse;
      comparer.check(number, lse_lo, static_cast<double>(rest + expected.lse_lo[row]),
                     lse_lo_gate(problem, expected, number), loose);
      if (std::fabs(lse_lo) > 1.01 * rounding(problem.lse.dtype, lse)) {
        comparer.check_exact(number, lse_lo, 0);
      }
    }
  }
  return comparer.result();
}

Comparison compare_all(const runmax_problem& problem, const runmax_args& args,
                       const Forward& expected) {
  Comparison worst = compare_out(problem, args, expected);
  const auto include = [&](Comparison next) {
    if (worst.passed && (!next.passed || next.max_ratio > worst.max_ratio)) worst = std::move(next);
  };
  if (problem.lse.dtype != RUNMAX_DTYPE_NONE) {
    include(compare_lse(problem, args, expected));
    if (problem.lse_lo.dtype != RUNMAX_DTYPE_NONE) include(compare_lse_lo(problem, args, expected));
  }
  return worst;
}

double family_limit(runmax_dtype out, double plain_max_error, double max_expected) {
  return 2 * plain_max_error + rounding(out, max_expected);
}

}  // namespace runmax::testing
