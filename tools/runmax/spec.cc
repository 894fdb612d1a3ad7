#include "spec.h"

#include "error.h"
#include "input_file.h"
#include "testing/case.h"

namespace runmax::cli {

Spec::Spec(const testing::ProblemSpec& spec) : words(spec), problem(testing::make_problem(words)) {
  require(runmax_validate(&problem));
}

Device Spec::make_device(Options options) const {
  options.threads = static_cast<int32_t>(words.threads);
  Device device = cli::make_device(options, testing::isa_mask(words.isa));
  // The library takes an instruction set that the machine lacks as leave to use it. Here it says
  // what to run, and another one would answer for it.
  const bool lacking = !words.isa.empty() &&
                       (info_of(device.get()).isa & runmax_isa_from_name(words.isa.c_str())) == 0;
  if (lacking) fail("problem", "isa: is {}, must be one of this machine (runmax list)", words.isa);
  return device;
}

double Spec::bytes() const {
  double total = 0;
  for (const testing::Operand& operand : testing::operands()) {
    const runmax_tensor& tensor = problem.*operand.tensor;
    double bytes = static_cast<double>(dtype_bytes(tensor.dtype));
    for (int d = 0; d < tensor.rank; ++d) bytes *= static_cast<double>(tensor.shape[d]);
    total += bytes;
  }
  return total;
}

Spec parse_spec(const std::string& text, bool backward) {
  testing::ParsedProblem parsed = testing::parse_problem(text);
  if (!parsed.ok()) throw Error(kExitBadInput, parsed.error);
  if (backward) parsed.spec.direction = RUNMAX_BACKWARD;
  return Spec(parsed.spec);
}

}  // namespace runmax::cli
