// What needs a process of its own making: little memory, and a library that computes wrongly.
#include <gtest/gtest.h>

#include "input_files.h"
#include "run_command.h"

namespace runmax::testing {
namespace {

std::string small_input() {
  return safetensors_bytes({f32_filled("q", {1, 2, 300, 64}), f32_filled("k", {1, 2, 300, 64}),
                            f32_filled("v", {1, 2, 300, 64})});
}

// Address space from too little to plenty: wherever memory ends, the command ends in good order.
TEST(Limits, OutOfMemoryAnywhere) {
  const TemporaryFolder folder;
  write_bytes(folder.path("IN"), small_input());
  int refused = 0;
  int done = 0;
  for (rlim_t megabytes = 16; megabytes <= 400; megabytes += megabytes < 120 ? 1 : 20) {
    CommandSetup setup;
    setup.limits[RLIMIT_AS] = megabytes << 20;
    const CommandResult result = run_command(
        {"attend", folder.path("IN"), folder.path("OUT"), "--quiet", "--threads", "2"}, setup);
    SCOPED_TRACE(megabytes);
    if (result.exit_code == 127) continue;  // the loader found no room for the libraries
    if (result.exit_code == 0) {
      ++done;
      EXPECT_EQ(result.err, "");
      EXPECT_EQ(folder.names(), (std::vector<std::string>{"IN", "OUT"}));
      continue;
    }
    ++refused;
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.err.rfind("runmax: error: ", 0), 0u) << result.err;
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
    if (done == 0) {
      EXPECT_EQ(folder.names(), (std::vector<std::string>{"IN"}));
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(done, 0);
}

TEST(Limits, CheckFindsAWrongResult) {
  const TemporaryFolder folder;
  write_bytes(folder.path("IN"), small_input());
  CommandSetup setup;
  setup.environment["LD_PRELOAD"] = BROKEN_EXECUTE;
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"check", folder.path("IN")},
        std::vector<std::string>{"check", "--problem", "q_len=33 kv_len=65 head_dim=16"}}) {
    const CommandResult broken = run_command(arguments, setup);
    EXPECT_EQ(broken.exit_code, 1) << broken.out << broken.err;
    EXPECT_NE(broken.out.find("FAILED"), std::string::npos) << broken.out;
    EXPECT_EQ(broken.err, "");
    EXPECT_EQ(run_command(arguments).exit_code, 0);
  }
}

}  // namespace
}  // namespace runmax::testing
