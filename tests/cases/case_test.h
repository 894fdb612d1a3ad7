// What the tests of public bug reports share: each case runs over types, instruction sets and
// splits, its closed-form answer is asserted element by element, and the gates judge it as well.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "testing/element.h"
#include "testing/run.h"

namespace runmax::testing {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline const std::vector<std::string> kAllTypes = {"f32", "f64", "bf16", "f16"};

// Words to put before a case's problem string: dtype, isa, num_splits.
struct Paths {
  std::vector<std::string> dtypes = kAllTypes;
  std::vector<int> splits = {0, 1, 2, 3};
};

// Runs `body` for every path, under a trace that names it.
inline void for_each_path(const Paths& paths, const std::function<void(const std::string&)>& body) {
  int runs = 0;
  for (const std::string& dtype : paths.dtypes) {
    for (const std::string& isa : isa_levels()) {
      for (int splits : paths.splits) {
        const std::string words =
            "dtype=" + dtype + " isa=" + isa + " num_splits=" + std::to_string(splits) + " ";
        SCOPED_TRACE(words);
        body(words);
        ++runs;
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
  ASSERT_GT(runs, 0);
}

// Executes and compares with the oracle; fails the test if anything is off.
inline void run_and_check(Case& c) {
  CheckOptions options;
  options.with_plain = false;
  const CheckReport report = check(c, options);
  ASSERT_TRUE(report.passed()) << report.text();
  ASSERT_GT(report.out.compared, 0);
}

inline double relative_tolerance(int64_t dtype) {
  switch (dtype) {
    case RUNMAX_F64:
      return 1e-12;
    case RUNMAX_F32:
      return 1e-5;
    case RUNMAX_F16:
      return 2e-3;
    default:
      return 1e-2;
  }
}

// Zeros and infinities are exact, a NaN wants a NaN.
inline bool is_near(double actual, double wanted, double relative) {
  if (std::isnan(wanted)) return std::isnan(actual);
  if (wanted == 0 || std::isinf(wanted)) return actual == wanted;
  return std::fabs(actual - wanted) <= relative * std::fabs(wanted);
}

inline void expect_near(double actual, double wanted, double relative, const char* name) {
  EXPECT_TRUE(is_near(actual, wanted, relative))
      << name << " is " << actual << ", must be " << wanted;
}

using OutValue = std::function<double(int64_t b, int64_t h, int64_t i, int64_t d)>;
using LseValue = std::function<double(int64_t b, int64_t h, int64_t i)>;

inline void expect_out(const Case& c, const OutValue& wanted) {
  const runmax_tensor& t = c.problem().out;
  const double tolerance = relative_tolerance(t.dtype);
  for_each_element(t, [&](const int64_t* i, int64_t) {
    const double actual = c.at("out", {i[0], i[1], i[2], i[3]});
    const double right = wanted(i[0], i[1], i[2], i[3]);
    if (is_near(actual, right, tolerance)) return;
    ADD_FAILURE() << "out[" << i[0] << ", " << i[1] << ", " << i[2] << ", " << i[3] << "] is "
                  << actual << ", must be " << right;
  });
}

inline void expect_lse(const Case& c, const LseValue& wanted, double relative = 1e-6) {
  for_each_element(c.problem().lse, [&](const int64_t* i, int64_t) {
    const double actual = c.at("lse", {i[0], i[1], i[2]});
    const double right = wanted(i[0], i[1], i[2]);
    // A relative error of the sum is an absolute one of its logarithm, which may happen to be 0.
    if (is_near(actual, right, relative) || std::fabs(actual - right) <= relative) return;
    ADD_FAILURE() << "lse[" << i[0] << ", " << i[1] << ", " << i[2] << "] is " << actual
                  << ", must be " << right;
  });
}

// By token: V[j] of the reports.
inline void fill_tokens(Case& c, std::string_view name,
                        const std::function<double(int64_t)>& value) {
  c.fill(name, [&](const int64_t* i) { return value(i[2]); });
}

}  // namespace runmax::testing
