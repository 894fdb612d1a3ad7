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

// Tiles of a kernel for a type, from its plan.
runmax_plan_info plan_info(const std::string& text);

class Sweep {
 public:
  // Every kernel runs under the least instruction sets that allow it, or under all that do.
  explicit Sweep(bool every_level) : every_level_(every_level) {}

  // Fails the running test where a kernel is off. `family` joins problems for the rule that
  // compares with the plain computation; "" = not judged by it.
  void run(const std::string& text, const std::string& family = "");
  // The family rule, and that every kernel and instruction set did run. Call at the end.
  void finish(bool expect_merge = false);

  int64_t executed() const { return executed_; }

 private:
  struct Errors {
    double kernel = 0, plain = 0, largest = 0;
    int64_t elements = 0;
    int64_t out_dtype = 0;
    std::string worst;
  };
  void run_kernel(Case& c, const Kernel& kernel, const std::string& level,
                  const reference::Forward& oracle, const std::string& family);

  bool every_level_;
  int64_t executed_ = 0;
  int64_t failures_ = 0;
  std::set<std::string> covered_;
  std::map<std::string, Errors> families_;
};

}  // namespace runmax::testing
