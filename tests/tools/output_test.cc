// Outputs appear whole or not at all: failing writes, signals, links, permissions.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "input_files.h"
#include "run_command.h"

namespace runmax::testing {
namespace {

const std::string kOld = "what was there before";

// A short computation with an output of `rows` * 4096 bytes.
std::string wide_input(int64_t rows) {
  return safetensors_bytes({f32_filled("q", {1, 1, rows, 1}), f32_filled("k", {1, 1, 1, 1}),
                            f32_filled("v", {1, 1, 1, 1024})});
}

TEST(Output, FailedWriteLeavesNothing) {
  for (const bool existed : {false, true}) {
    const TemporaryFolder folder;
    write_bytes(folder.path("IN"), wide_input(64));
    if (existed) write_bytes(folder.path("OUT"), kOld);
    const CommandResult result = run_command({"attend", folder.path("IN"), folder.path("OUT")},
                                             {.limits = {{RLIMIT_FSIZE, 100000}},
                                              .environment = {},
                                              .stdout_path = "",
                                              .while_running = nullptr});
    EXPECT_EQ(error_fault(result, "OUT"), "");
    EXPECT_EQ(folder.names(),
              existed ? (std::vector<std::string>{"IN", "OUT"}) : (std::vector<std::string>{"IN"}));
    if (existed) {
      EXPECT_EQ(read_bytes(folder.path("OUT")), kOld);
    }
  }
}

// The large output fails after the small one has been written: neither appears.
TEST(Output, NoFileAppearsUnlessAllDo) {
  const TemporaryFolder folder;
  write_bytes(folder.path("q"), npy_bytes(f32_filled("q", {1, 1, 64, 1})));
  write_bytes(folder.path("k"), npy_bytes(f32_filled("k", {1, 1, 1, 1})));
  write_bytes(folder.path("v"), npy_bytes(f32_filled("v", {1, 1, 1, 1024})));
  write_bytes(folder.path("lse"), kOld);
  const CommandResult result =
      run_command({"attend", "--q", folder.path("q"), "--k", folder.path("k"), "--v",
                   folder.path("v"), "--out", folder.path("out"), "--lse", folder.path("lse")},
                  {.limits = {{RLIMIT_FSIZE, 100000}},
                   .environment = {},
                   .stdout_path = "",
                   .while_running = nullptr});
  EXPECT_EQ(error_fault(result, "--out"), "");
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"k", "lse", "q", "v"}));
  EXPECT_EQ(read_bytes(folder.path("lse")), kOld);
}

TEST(Output, ClosedStandardOutputIsAnErrorToo) {
  const TemporaryFolder folder;
  write_bytes(folder.path("IN"), wide_input(1));
  CommandSetup setup;
  setup.stdout_path = "/dev/full";
  EXPECT_EQ(
      error_fault(run_command({"attend", folder.path("IN"), folder.path("OUT")}, setup), "stdout"),
      "");
  EXPECT_EQ(error_fault(run_command({"list"}, setup), "stdout"), "");
  EXPECT_EQ(error_fault(run_command({"--help"}, setup), "stdout"), "");
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"IN"}));
}

bool has_temporary(const TemporaryFolder& folder) {
  for (const std::string& name : folder.names()) {
    if (name.rfind(".runmax-", 0) == 0) return true;
  }
  return false;
}

// Ctrl-C while the output is being written.
TEST(Output, SignalWhileWritingLeavesNothing) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const TemporaryFolder folder;
    write_bytes(folder.path("IN"), wide_input(60000));  // 240 MB of output
    write_bytes(folder.path("OUT"), kOld);
    bool seen = false;
    CommandSetup setup;
    setup.while_running = [&](int pid) {
      for (int i = 0; i < 20000 && !seen; ++i) {
        seen = has_temporary(folder);
        if (!seen) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      ::kill(pid, signal);
    };
    const CommandResult result =
        run_command({"attend", folder.path("IN"), folder.path("OUT")}, setup);
    EXPECT_TRUE(seen);
    EXPECT_EQ(result.exit_code, 130);
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(folder.names(), (std::vector<std::string>{"IN", "OUT"}));
    EXPECT_EQ(read_bytes(folder.path("OUT")), kOld);
  }
}

// Ctrl-C at any moment: all or nothing.
TEST(Output, SignalAtAnyMoment) {
  const TemporaryFolder folder;
  write_bytes(folder.path("IN"), wide_input(2000));
  int interrupted = 0;
  for (int delay = 0; delay < 60; ++delay) {
    write_bytes(folder.path("OUT"), kOld);
    CommandSetup setup;
    setup.while_running = [&](int pid) {
      std::this_thread::sleep_for(std::chrono::microseconds(500 * delay));
      ::kill(pid, SIGINT);
    };
    const CommandResult result =
        run_command({"attend", folder.path("IN"), folder.path("OUT"), "--quiet"}, setup);
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(folder.names(), (std::vector<std::string>{"IN", "OUT"}));
    const bool old = read_bytes(folder.path("OUT")) == kOld;
    // Before the program has come to main() the signal ends it in the ordinary way.
    if (result.exit_code == 130) ++interrupted;
    if (result.exit_code == 0) {
      EXPECT_FALSE(old);
      EXPECT_EQ(read_safetensor(read_bytes(folder.path("OUT")), "out").bytes.size(), 2000u * 4096);
    }
  }
  EXPECT_GT(interrupted, 0);
}

TEST(Output, KeepsLinksAndPermissions) {
  const TemporaryFolder folder;
  write_bytes(folder.path("IN"), wide_input(1));
  write_bytes(folder.path("target"), kOld);
  ASSERT_EQ(::chmod(folder.path("target").c_str(), 0640), 0);
  ASSERT_EQ(::symlink("target", folder.path("OUT").c_str()), 0);
  const CommandResult result = run_command({"attend", folder.path("IN"), folder.path("OUT")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  struct stat info {};
  ASSERT_EQ(::lstat(folder.path("OUT").c_str(), &info), 0);
  EXPECT_TRUE(S_ISLNK(info.st_mode));
  ASSERT_EQ(::stat(folder.path("target").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640u);
  EXPECT_EQ(read_safetensor(read_bytes(folder.path("target")), "out").shape,
            (std::vector<int64_t>{1, 1, 1, 1024}));
}

}  // namespace
}  // namespace runmax::testing
