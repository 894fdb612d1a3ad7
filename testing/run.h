// Runs cases through the public API and holds the results against the oracle. Tests, bench and
// `runmax check` use the same functions.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "reference/backward.h"
#include "reference/oracle.h"
#include "runmax/runmax.h"
#include "testing/case.h"
#include "testing/gates.h"

namespace runmax::testing {

// The CPU with this many thread slots (0 = default) and these instruction sets (0 = all). Made on
// first use and kept; aborts if the machine cannot give it.
runmax_device* cpu_device(int64_t threads = 0, uint64_t isa_mask = 0);
// The first GPU, likewise.
runmax_device* cuda_device();
// The kind of device that cases run on: CUDA if the environment says RUNMAX_TEST_DEVICE=cuda, so
// that one set of test binaries serves both.
int32_t test_device_kind();
// What the spec's words `threads` and `isa` ask for, or the GPU.
runmax_device* device_for(const ProblemSpec& spec);
// The instruction-set restrictions that make a difference on this machine, the baseline first. On a
// GPU there is but one, and it says nothing.
std::vector<std::string> isa_levels();

// How one execution went.
struct Outcome {
  runmax_status status = RUNMAX_OK;
  std::string message, field;  // runmax_last_error() and its field
  std::string damage;          // what was written that must not be; "" if nothing
  runmax_plan_info info{};     // of the plan; info.kernel says what ran

  bool ok() const { return status == RUNMAX_OK && damage.empty(); }
  // For a failing assertion.
  std::string text() const;
};

// Plans, gives exactly the workspace asked for (filled with 0xFF, between guards), executes. Merge
// goes through runmax_merge(). Pointers are the host's; devices with memory of their own get a
// Placement.
Outcome execute(const runmax_problem& problem, const runmax_args& args, runmax_device* device);
// Likewise on the case's own device, after seal(); looks for damage, and for elements of outputs
// that were not written. The CPU gets a Placement too if asked to, which then tests
// runmax_device_alloc and runmax_device_copy. A case that asks for gradients runs forward first, as
// a user would, for its out and lse; rows of no sequence keep their poison there.
Outcome execute(Case& c, bool through_device_memory = false);
Outcome execute(Case& c, runmax_device* device, bool through_device_memory = false);

// The forward problem whose out and lse the gradients need.
runmax_problem forward_of(const runmax_problem& backward);

// Remembers the largest error of a kernel and type. When a process that tests a device of its
// choice (RUNMAX_TEST_DEVICE) ends, each is printed: "[errors] KERNEL DTYPE RATIO ERROR", the ratio
// being the share of the gate.
void note_errors(const std::string& kernel, runmax_dtype dtype, const Comparison& comparison);

// The oracle's answer, forward or merge.
reference::Forward expected(const runmax_problem& problem, const runmax_args& args,
                            const std::vector<int64_t>& rows = {});
// Of a problem that asks for gradients.
reference::Backward expected_gradients(const runmax_problem& problem, const runmax_args& args,
                                       const std::vector<int64_t>& rows = {});

struct CheckOptions {
  bool with_plain = true;  // compute the plain three-step result too, for its error
  uint64_t plain_memory_limit = uint64_t{2} << 30;
  // Beyond so many visible pairs only some rows of each head are checked (of gradients, only d_q).
  uint64_t max_pairs = uint64_t{1} << 31;
  int64_t rows_per_head = 64;
  uint64_t row_seed = 1;
};

// One problem, executed and compared.
struct CheckReport {
  std::string problem;  // its string, where there is one
  Outcome outcome;
  Comparison out, lse, lse_lo;  // compared == 0: the problem has no such output
  int64_t rows_checked = 0;
  int64_t rows_total = 0;
  bool plain_ran = false;
  Comparison plain_out;  // the plain computation against the same oracle and gate

  struct GradientResult {
    std::string name;
    Comparison kernel, plain;  // plain.compared == 0: it did not run
  };
  std::vector<GradientResult> gradients;

  bool passed() const;
  // Several lines for people; the first failure if there is one.
  std::string text() const;
};

// Runs in the caller's output buffers (host memory, CPU device).
CheckReport check(const runmax_problem& problem, const runmax_args& args, runmax_device* device,
                  const CheckOptions& options = {});
CheckReport check(Case& c, const CheckOptions& options = {});
// Replays a problem string: `runmax check --problem`.
CheckReport check(const ProblemSpec& spec, const CheckOptions& options = {});

// Contiguous buffers for the outputs of a problem, and the problem and args that write there: a
// second result beside the first.
class OutputCopy {
 public:
  OutputCopy(const runmax_problem& problem, const runmax_args& args);
  runmax_problem problem;
  runmax_args args;
  std::map<std::string, std::vector<std::byte>> gradients;  // by name
  std::vector<std::byte> out, lse, lse_lo;
  bool same_bits(const OutputCopy& other) const {
    return out == other.out && lse == other.lse && lse_lo == other.lse_lo;
  }
};

}  // namespace runmax::testing
