#include "testing/gates.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "reference/gate_constants.h"
#include "reference/number.h"
#include "reference/operand_data.h"

namespace runmax::testing {
namespace {

using reference::accumulator_type;
using reference::Forward;
using reference::kLseRounding;
using reference::kLseSum;
using reference::kProbRounding;
using reference::kRounding;
using reference::kScore;
using reference::kSum;
using reference::rounding;
using reference::unit_roundoff;

constexpr double kInf = std::numeric_limits<double>::infinity();

runmax_dtype input_type(const runmax_problem& problem) {
  return problem.op == RUNMAX_MERGE ? problem.partial_out.dtype : problem.q.dtype;
}

// What the sums are computed in: lse has that type, for every op.
double accumulator_roundoff(const runmax_problem& problem) {
  return unit_roundoff(problem.op == RUNMAX_MERGE ? problem.partial_lse.dtype
                                                  : accumulator_type(problem.q.dtype));
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

  // Gradients that are not finite may be inf or nan, whichever the order of operations makes.
  void check_gradient(int64_t element, double actual, double expected, double gate, bool loose) {
    if (std::isfinite(expected)) return check(element, actual, expected, gate, loose);
    ++result_.compared;
    note(element, actual, expected, 0, std::isfinite(actual) ? kInf : 0);
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

struct GradientPlace {
  const char* name;
  runmax_tensor runmax_problem::*tensor;
  void* runmax_args::*pointer;
  reference::Gradient reference::Backward::*expected;
};
constexpr GradientPlace kGradients[] = {
    {"d_q", &runmax_problem::d_q, &runmax_args::d_q, &reference::Backward::d_q},
    {"d_k", &runmax_problem::d_k, &runmax_args::d_k, &reference::Backward::d_k},
    {"d_v", &runmax_problem::d_v, &runmax_args::d_v, &reference::Backward::d_v},
    {"d_bias", &runmax_problem::d_bias, &runmax_args::d_bias, &reference::Backward::d_bias},
    {"d_sink", &runmax_problem::d_sink, &runmax_args::d_sink, &reference::Backward::d_sink},
    {"d_alibi_slopes", &runmax_problem::d_alibi_slopes, &runmax_args::d_alibi_slopes,
     &reference::Backward::d_alibi_slopes},
    {"d_partial_out", &runmax_problem::d_partial_out, &runmax_args::d_partial_out,
     &reference::Backward::d_partial_out},
    {"d_partial_lse", &runmax_problem::d_partial_lse, &runmax_args::d_partial_lse,
     &reference::Backward::d_partial_lse},
};

}  // namespace

double out_gate(const runmax_problem& problem, const Forward& expected, int64_t element) {
  const auto at = static_cast<size_t>(element);
  const runmax_dtype type = input_type(problem);
  const bool narrow = type == RUNMAX_BF16 || type == RUNMAX_F16;
  const bool rounds_probs = narrow && problem.op != RUNMAX_MERGE;
  const double accumulate = accumulator_roundoff(problem);
  const double terms = (rounds_probs ? kProbRounding * unit_roundoff(type) : 0) + kSum * accumulate;
  return kRounding * rounding(problem.out.dtype, expected.out[at]) +
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

double gradient_gate(runmax_dtype dtype, const reference::Gradient& expected, int64_t element) {
  const auto at = static_cast<size_t>(element);
  return kRounding * rounding(dtype, expected.value[at]) + expected.error[at];
}

Comparison compare_gradient(const char* name, const runmax_problem& problem,
                            const runmax_args& args, const reference::Backward& expected) {
  using reference::Reach;
  const auto place = std::find_if(std::begin(kGradients), std::end(kGradients),
                                  [&](const auto& g) { return std::string(g.name) == name; });
  const runmax_tensor& tensor = problem.*place->tensor;
  const reference::Gradient& gradient = expected.*place->expected;
  Comparer comparer(place->name, tensor);
  for (size_t at = 0; at < gradient.value.size(); ++at) {
    const Reach reach = gradient.reach[at];
    const bool keep_unused = (problem.flags & RUNMAX_KEEP_UNUSED) != 0;
    if (reach == Reach::kSkipped || (reach == Reach::kUnused && keep_unused)) continue;
    const auto number = static_cast<int64_t>(at);
    const double actual = element(tensor, args.*place->pointer, number);
    if (reach == Reach::kUnused || reach == Reach::kNothing) {
      comparer.check_exact(number, actual, 0);
    } else {
      comparer.check_gradient(number, actual, gradient.value[at],
                              gradient_gate(tensor.dtype, gradient, number),
                              reach == Reach::kBeyond);
    }
  }
  return comparer.result();
}

std::vector<const char*> gradients_of(const runmax_problem& problem) {
  std::vector<const char*> names;
  for (const GradientPlace& place : kGradients) {
    if ((problem.*place.tensor).dtype != RUNMAX_DTYPE_NONE) names.push_back(place.name);
  }
  return names;
}

Comparison compare_gradients(const runmax_problem& problem, const runmax_args& args,
                             const reference::Backward& expected) {
  Comparison worst;
  int64_t compared = 0;
  for (const char* name : gradients_of(problem)) {
    Comparison next = compare_gradient(name, problem, args, expected);
    compared += next.compared;
    if (worst.passed && (!next.passed || next.max_ratio >= worst.max_ratio))
      worst = std::move(next);
  }
  worst.compared = compared;
  return worst;
}

double family_limit(runmax_dtype out, double plain_max_error, double max_expected) {
  return 2 * plain_max_error + rounding(out, max_expected);
}

}  // namespace runmax::testing
