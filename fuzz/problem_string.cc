// Any text as a problem string: an error of one line, or a specification that prints to a string
// with the same meaning, and a problem that the library accepts, refuses or plans, but survives.
#include "testing/problem_string.h"

#include <algorithm>
#include <stdexcept>

#include "bytes_file.h"
#include "testing/case.h"

using runmax::fuzz::require;
using namespace runmax::testing;

namespace {

runmax_device* device() {
  static runmax_device* instance = [] {
    runmax_device_options options{};
    options.struct_size = sizeof options;
    options.max_threads = 2;
    runmax_device* made = nullptr;
    require(runmax_device_create(&options, &made) == RUNMAX_OK);
    return made;
  }();
  return instance;
}

// Counting work takes time that grows with the number of rows.
bool small(const ProblemSpec& spec) {
  return spec.batch <= 64 && spec.q_len <= 4096 && spec.kv_len <= 4096;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const ParsedProblem parsed = parse_problem(text);
  if (!parsed.ok()) {
    require(parsed.error.find('\n') == std::string::npos);
    return 0;
  }
  const ParsedProblem again = parse_problem(to_string(parsed.spec));
  require(again.ok() && again.spec == parsed.spec);

  if (!small(parsed.spec)) return 0;
  runmax_problem problem{};
  try {
    problem = make_problem(parsed.spec);
  } catch (const std::length_error&) {
    return 0;  // more elements than a tensor can have
  }
  if (runmax_validate(&problem) != RUNMAX_OK) {
    require(runmax_last_error()[0] != '\0');
    return 0;
  }
  runmax_plan* plan = nullptr;
  if (problem.op == RUNMAX_MERGE || runmax_plan_create(&problem, device(), &plan) != RUNMAX_OK) {
    return 0;
  }
  runmax_plan_info info{};
  info.struct_size = sizeof info;
  require(runmax_plan_get_info(plan, &info) == RUNMAX_OK);
  require(runmax_plan_explain(plan)[0] != '\0');
  runmax_plan_destroy(plan);
  return 0;
}
