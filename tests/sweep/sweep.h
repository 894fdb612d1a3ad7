// The sweep: problems x kernels x instruction sets, generated from the kernel table. A problem's
// data and the oracle's answer are made once and every kernel that takes it is held against them.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "testing/run.h"

namespace runmax::testing {

struct Kernel {
  std::string name;
  int32_t op;
  std::vector<std::string> levels;  // instruction-set restrictions of this machine that allow it
};
// The rows of the table that this machine can run.
std::vector<Kernel> kernels_here();

// The last row of an operation takes every valid problem; the others may refuse.
bool takes_everything(const Kernel& kernel);
// Does the kernel that a problem string names take it? Fails the running test if one refuses that
// must not.
bool takes(const std::string& text);

// Tiles of a kernel for a type, from its plan.
runmax_plan_info plan_info(const std::string& text);

class Sweep {
 public:
  // Every kernel runs under the least instruction sets that allow it, or under all that do.
  explicit Sweep(bool every_level) : every_level_(every_level) {}

  // Fails the running test where a kernel is off. `family` joins problems for the rule that
  // compares with the plain computation, out or each gradient; "" = not judged by it.
  void run(const std::string& text, const std::string& family = "");
  // The family rule, and that every kernel of the op and instruction set did run. Call at the end.
  void finish(int32_t op = RUNMAX_FORWARD);

  int64_t executed() const { return executed_; }

 private:
  struct Errors {
    double kernel = 0, plain = 0, largest = 0;
    int64_t elements = 0;
    int32_t dtype = 0;
    std::string worst;
  };
  // The oracle's answer to a problem, of whichever kind it is.
  struct Answer {
    reference::Forward forward;
    reference::Backward backward;
  };
  struct Result {
    std::string name;  // "out" or a gradient
    int32_t dtype;
    Comparison comparison;
  };
  static std::vector<Result> judge(const runmax_problem& problem, const runmax_args& args,
                                   const Answer& answer);
  void run_plain(const Case& c, const Answer& answer, const std::string& family);
  void run_kernel(Case& c, const Kernel& kernel, const std::string& level, const Answer& answer,
                  const std::string& family);
  void fail(const std::string& text);

  bool every_level_;
  int64_t executed_ = 0;
  int64_t failures_ = 0;
  std::set<std::string> covered_;
  std::map<std::string, Errors> families_;
};

}  // namespace runmax::testing
