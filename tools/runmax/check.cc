// runmax check: the library's result against the float64 oracle, beside the plain computation's.
#include <cmath>

#include "commands.h"
#include "device.h"
#include "progress.h"
#include "request.h"
#include "spec.h"
#include "testing/run.h"
#include "text.h"

namespace runmax::cli {
namespace {

using nlohmann::ordered_json;
using testing::CheckReport;
using testing::Comparison;

CheckReport check_file(const Options& options) {
  const Device device = make_device(options);
  Request request(options, open_inputs(options));
  require(runmax_supports(&request.forward(), device.get()));
  const bool backward = request.wants_backward();
  if (backward) require(runmax_supports(&request.backward(), device.get()));
  request.load(device.get());
  const Progress progress("checking against the float64 oracle", options.quiet);
  return testing::check(backward ? request.backward() : request.forward(), request.args(),
                        device.get());
}

CheckReport check_string(const Options& options) {
  const Spec spec = parse_spec(*options.problem);
  {
    // The test machinery makes its own device; all that could be refused is asked before it does.
    const Device device = spec.make_device(options);
    if (spec.problem.op != RUNMAX_MERGE) require(runmax_supports(&spec.problem, device.get()));
    require_memory(device.get(), spec.bytes());
  }
  const Progress progress("checking against the float64 oracle", options.quiet);
  return testing::check(spec.words);
}

ordered_json json_of(const Comparison& comparison) {
  const auto number = [](double value) {
    return std::isfinite(value) ? ordered_json(value) : ordered_json(fmt::format("{}", value));
  };
  return {{"passed", comparison.passed},
          {"compared", comparison.compared},
          {"max_error", number(comparison.max_error)},
          {"max_error_over_gate", number(comparison.max_ratio)},
          {"max_value", number(comparison.max_expected)}};
}

ordered_json json_of(const CheckReport& report) {
  ordered_json json = {{"passed", report.passed()},
                       {"kernel", report.outcome.info.kernel},
                       {"rows_checked", report.rows_checked},
                       {"rows_total", report.rows_total}};
  if (!report.problem.empty()) json["problem"] = report.problem;
  if (!report.outcome.damage.empty()) json["damage"] = report.outcome.damage;
  if (report.out.compared > 0) json["out"] = json_of(report.out);
  if (report.lse.compared > 0) json["lse"] = json_of(report.lse);
  if (report.lse_lo.compared > 0) json["lse_lo"] = json_of(report.lse_lo);
  if (report.plain_ran) json["plain_out"] = json_of(report.plain_out);
  for (const CheckReport::GradientResult& gradient : report.gradients) {
    json[gradient.name] = json_of(gradient.kernel);
    if (gradient.plain.compared > 0) json["plain_" + gradient.name] = json_of(gradient.plain);
  }
  return json;
}

}  // namespace

int check(const Options& options) {
  const CheckReport report = options.problem ? check_string(options) : check_file(options);
  const testing::Outcome& outcome = report.outcome;
  if (outcome.status == RUNMAX_OUT_OF_MEMORY) throw std::bad_alloc();
  if (outcome.status != RUNMAX_OK) {
    throw Error(outcome.status == RUNMAX_UNSUPPORTED ? kExitUnsupported : kExitBadInput,
                outcome.message);
  }
  if (options.json) {
    print_json(json_of(report));
  } else if (!options.quiet) {
    std::string text = report.text();
    if (text.empty() || text.back() != '\n') text += '\n';
    print(text);
  }
  return report.passed() ? kExitDone : kExitCheckFailed;
}

}  // namespace runmax::cli
