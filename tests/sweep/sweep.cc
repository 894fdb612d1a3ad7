#include "tests/sweep/sweep.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "reference/plain.h"

namespace runmax::testing {
namespace {

std::string replay(const ProblemSpec& spec) {
  return "\n  runmax check --problem '" + to_string(spec) + "'";
}

// Refusals that are part of a kernel's description, not faults of a problem.
bool may_be_refused(const ProblemSpec& spec) { return spec.batch_invariant && spec.num_splits > 1; }

}  // namespace

std::vector<Kernel> kernels_here() {
  std::vector<Kernel> all;
  for (int32_t n = 0; n < runmax_kernel_count(); ++n) {
    runmax_kernel_info info{};
    info.struct_size = sizeof info;
    if (runmax_kernel_get(n, &info) != RUNMAX_OK || info.device_kind != test_device_kind())
      continue;
    Kernel kernel{info.name, info.op, {}};
    for (const std::string& level : isa_levels()) {
      if ((info.required_isa & ~isa_mask(level)) == 0) kernel.levels.push_back(level);
    }
    if (!kernel.levels.empty()) all.push_back(kernel);
  }
  return all;
}

runmax_plan_info plan_info(const std::string& text) {
  const ProblemSpec spec = problem(text);
  const runmax_problem p = make_problem(spec);
  runmax_plan_info info{};
  info.struct_size = sizeof info;
  runmax_plan* plan = nullptr;
  EXPECT_EQ(runmax_plan_create(&p, device_for(spec), &plan), RUNMAX_OK) << runmax_last_error();
  if (plan != nullptr) runmax_plan_get_info(plan, &info);
  runmax_plan_destroy(plan);
  return info;
}

void Sweep::run(const std::string& text, const std::string& family) {
  if (failures_ > 20) return;  // enough to read
  const ParsedProblem parsed = parse_problem(text);
  ASSERT_TRUE(parsed.ok()) << parsed.error;
  Case c(parsed.spec);
  const reference::Forward oracle = expected(c.problem(), c.args());
  if (!family.empty()) {
    OutputCopy plain(c.problem(), c.args());
    ASSERT_TRUE(reference::plain_forward(plain.problem, plain.args)) << text;
    const Comparison result = compare_out(plain.problem, plain.args, oracle);
    EXPECT_TRUE(result.passed) << "the plain computation: " << result.message << replay(c.spec());
    for (const Kernel& kernel : kernels_here()) {
      Errors& errors = families_[family + " " + kernel.name];
      errors.plain = std::max(errors.plain, result.max_error);
      errors.largest = std::max(errors.largest, result.max_expected);
      errors.out_dtype = c.spec().out_dtype;
    }
  }
  for (const Kernel& kernel : kernels_here()) {
    if (kernel.op != c.problem().op) continue;
    if (!every_level_) {
      run_kernel(c, kernel, kernel.levels.front(), oracle, family);
      continue;
    }
    for (const std::string& level : kernel.levels) run_kernel(c, kernel, level, oracle, family);
  }
}

void Sweep::run_kernel(Case& c, const Kernel& kernel, const std::string& level,
                       const reference::Forward& oracle, const std::string& family) {
  ProblemSpec spec = c.spec();
  spec.kernel = kernel.name;
  spec.isa = level;
  c.problem().kernel = spec.kernel.c_str();
  const Outcome outcome = execute(c, device_for(spec));
  c.problem().kernel = nullptr;
  if (outcome.status == RUNMAX_UNSUPPORTED && may_be_refused(spec)) return;
  if (!outcome.ok()) {
    ++failures_;
    ADD_FAILURE() << outcome.text() << replay(spec);
    return;
  }
  if (kernel.op != RUNMAX_MERGE && kernel.name != outcome.info.kernel) {
    ++failures_;
    ADD_FAILURE() << "asked for " << kernel.name << ", got " << outcome.info.kernel << replay(spec);
    return;
  }
  ++executed_;
  covered_.insert(kernel.name + " " + level);
  const Comparison result = compare_all(c.problem(), c.args(), oracle);
  if (!result.passed) {
    ++failures_;
    ADD_FAILURE() << result.message << replay(spec);
  }
  if (family.empty()) return;
  Errors& errors = families_[family + " " + kernel.name];
  const Comparison out = compare_out(c.problem(), c.args(), oracle);
  errors.elements += out.compared;
  if (out.max_error > errors.kernel) {
    errors.kernel = out.max_error;
    errors.worst = replay(spec);
  }
}

void Sweep::finish(bool expect_merge) {
  int64_t forward_rows = 0;
  for (const Kernel& kernel : kernels_here()) {
    if ((kernel.op == RUNMAX_MERGE) != expect_merge) continue;
    forward_rows += kernel.op == RUNMAX_FORWARD;
    for (const std::string& level : kernel.levels) {
      if (!every_level_ && level != kernel.levels.front()) continue;
      EXPECT_TRUE(covered_.count(kernel.name + " " + level))
          << kernel.name << " did not run under " << level;
    }
  }
  if (!expect_merge) {
    EXPECT_GT(forward_rows, 0);
  }
  EXPECT_GT(executed_, 0) << "a sweep that runs nothing proves nothing";
  for (const auto& [name, errors] : families_) {
    if (errors.elements == 0) continue;
    EXPECT_GE(errors.elements, 4096) << name << " is too small a family to judge";
    const double limit =
        family_limit(static_cast<runmax_dtype>(errors.out_dtype), errors.plain, errors.largest);
    EXPECT_LE(errors.kernel, limit)
        << name << ": the plain computation's largest error is " << errors.plain << errors.worst;
  }
}

}  // namespace runmax::testing
