#include "tests/sweep/sweep.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "reference/plain.h"

namespace runmax::testing {
namespace {

std::string replay(const ProblemSpec& spec) {
  return "\n  runmax check --problem '" + to_string(spec) + "'";
}

// Words that are fine on their own and ill-formed together.
bool ill_formed(const ProblemSpec& spec) { return spec.batch_invariant && spec.num_splits > 1; }

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

bool takes_everything(const Kernel& kernel) {
  std::string last;
  for (const Kernel& other : kernels_here()) {
    if (other.op == kernel.op) last = other.name;
  }
  return kernel.name == last;
}

bool takes(const std::string& text) {
  const ProblemSpec spec = problem(text);
  const runmax_problem p = make_problem(spec);
  const runmax_status status = runmax_supports(&p, device_for(spec));
  if (status != RUNMAX_UNSUPPORTED) return true;  // what else may be wrong shows when it runs
  for (const Kernel& kernel : kernels_here()) {
    if (kernel.name != spec.kernel) continue;
    EXPECT_FALSE(takes_everything(kernel)) << runmax_last_error();
  }
  return false;
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
  if (ill_formed(c.spec())) {
    EXPECT_EQ(execute(c).status, RUNMAX_INVALID_ARGUMENT) << text;
    return;
  }
  Answer answer;
  if (asks_for_gradients(c.problem())) {
    answer.backward = expected_gradients(c.problem(), c.args());
  } else {
    answer.forward = expected(c.problem(), c.args());
  }
  if (!family.empty()) run_plain(c, answer, family);
  for (const Kernel& kernel : kernels_here()) {
    if (kernel.op != c.problem().op) continue;
    if (!every_level_) {
      run_kernel(c, kernel, kernel.levels.front(), answer, family);
      continue;
    }
    for (const std::string& level : kernel.levels) run_kernel(c, kernel, level, answer, family);
  }
}

void Sweep::run_plain(const Case& c, const Answer& answer, const std::string& family) {
  OutputCopy plain(c.problem(), c.args());
  const bool gradients = asks_for_gradients(c.problem());
  ASSERT_TRUE(gradients ? reference::plain_backward(plain.problem, plain.args)
                        : reference::plain_forward(plain.problem, plain.args));
  for (const Result& result : judge(plain.problem, plain.args, answer)) {
    // Gradients that plain computes are no better than its range: F16 loses small ones.
    if (!gradients) {
      EXPECT_TRUE(result.comparison.passed)
          << "the plain computation: " << result.comparison.message << replay(c.spec());
    }
    for (const Kernel& kernel : kernels_here()) {
      if (kernel.op != c.problem().op) continue;
      Errors& errors = families_[family + " " + kernel.name + " " + result.name];
      errors.plain = std::max(errors.plain, result.comparison.max_error);
      errors.largest = std::max(errors.largest, result.comparison.max_expected);
      errors.dtype = result.dtype;
    }
  }
}

std::vector<Sweep::Result> Sweep::judge(const runmax_problem& problem, const runmax_args& args,
                                        const Answer& answer) {
  if (!asks_for_gradients(problem)) {
    return {{"out", problem.out.dtype, compare_out(problem, args, answer.forward)}};
  }
  std::vector<Result> results;
  for (const char* name : gradients_of(problem)) {
    for (const Operand& operand : operands()) {
      if (std::string_view(operand.name) != name) continue;
      results.push_back({name, (problem.*operand.tensor).dtype,
                         compare_gradient(name, problem, args, answer.backward)});
    }
  }
  return results;
}

void Sweep::fail(const std::string& text) {
  ++failures_;
  ADD_FAILURE() << text;
}

void Sweep::run_kernel(Case& c, const Kernel& kernel, const std::string& level,
                       const Answer& answer, const std::string& family) {
  ProblemSpec spec = c.spec();
  spec.kernel = kernel.name;
  spec.isa = level;
  c.problem().kernel = spec.kernel.c_str();
  const Outcome outcome = execute(c, device_for(spec));
  c.problem().kernel = nullptr;
  if (outcome.status == RUNMAX_UNSUPPORTED && !takes_everything(kernel)) return;
  if (!outcome.ok()) return fail(outcome.text() + replay(spec));
  if (kernel.op != RUNMAX_MERGE && kernel.name != outcome.info.kernel) {
    return fail("asked for " + kernel.name + ", got " + outcome.info.kernel + replay(spec));
  }
  ++executed_;
  covered_.insert(kernel.name + " " + level);
  const Comparison all = asks_for_gradients(c.problem())
                             ? compare_gradients(c.problem(), c.args(), answer.backward)
                             : compare_all(c.problem(), c.args(), answer.forward);
  note_errors(kernel.name, static_cast<runmax_dtype>(spec.dtype), all);
  if (!all.passed) fail(all.message + replay(spec));
  if (family.empty()) return;
  for (const Result& result : judge(c.problem(), c.args(), answer)) {
    Errors& errors = families_[family + " " + kernel.name + " " + result.name];
    errors.elements += result.comparison.compared;
    if (result.comparison.max_error > errors.kernel) {
      errors.kernel = result.comparison.max_error;
      errors.worst = replay(spec);
    }
  }
}

void Sweep::finish(int32_t op) {
  int64_t rows = 0;
  for (const Kernel& kernel : kernels_here()) {
    if (kernel.op != op) continue;
    ++rows;
    for (const std::string& level : kernel.levels) {
      if (!every_level_ && level != kernel.levels.front()) continue;
      EXPECT_TRUE(covered_.count(kernel.name + " " + level))
          << kernel.name << " did not run under " << level;
    }
  }
  EXPECT_TRUE(rows > 0 || op == RUNMAX_MERGE);
  EXPECT_GT(executed_, 0) << "a sweep that runs nothing proves nothing";
  for (const auto& [name, errors] : families_) {
    if (errors.elements == 0) continue;
    // One number per head: too few to be judged by a largest error.
    if (name.ends_with("d_sink") || name.ends_with("d_alibi_slopes")) continue;
    EXPECT_GE(errors.elements, 4096) << name << " is too small a family to judge";
    const double limit = family_limit(errors.dtype, errors.plain, errors.largest);
    EXPECT_LE(errors.kernel, limit)
        << name << ": the plain computation's largest error is " << errors.plain << errors.worst;
  }
}

}  // namespace runmax::testing
