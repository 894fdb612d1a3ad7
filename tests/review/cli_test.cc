// What the command once took without a word, or never came back from.
#include <gtest/gtest.h>

#include <string>

#include "testing/run.h"
#include "tests/tools/run_command.h"

namespace runmax::testing {
namespace {

TEST(Problem, OnAnInstructionSetThatTheMachineLacksIsRefused) {
  // x86 and Arm exclude each other.
  const bool arm = (runmax_isa_from_name("neon") & [] {
                     runmax_device_info info{};
                     info.struct_size = sizeof info;
                     EXPECT_EQ(runmax_device_get_info(cpu_device(), &info), RUNMAX_OK);
                     return info.isa_found;
                   }()) != 0;
  const std::string words = std::string("q_len=3 kv_len=5 isa=") + (arm ? "avx2" : "neon");
  for (const char* command : {"check", "explain"}) {
    const CommandResult result = run_command({command, "--problem", words});
    EXPECT_EQ(error_fault(result, "problem"), "");
    EXPECT_NE(result.err.find("isa"), std::string::npos) << result.err;
  }
  const CommandResult fine = run_command({"check", "--problem", "q_len=3 kv_len=5 isa=baseline"});
  EXPECT_EQ(fine.exit_code, 0) << fine.err;
}

TEST(Explain, OfAGiantProblemEnds) {
  const CommandResult result =
      run_command({"explain", "--problem", "q_len=200000000 kv_len=200000000 causal", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("\"visible_pairs\": 20000000100000000"), std::string::npos);
}

}  // namespace
}  // namespace runmax::testing
