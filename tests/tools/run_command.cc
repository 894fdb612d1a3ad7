#include "run_command.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace runmax::testing {
namespace {

[[noreturn]] void child(const std::vector<std::string>& arguments, const CommandSetup& setup,
                        int out, int err) {
  if (!setup.stdout_path.empty()) out = ::open(setup.stdout_path.c_str(), O_WRONLY);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  for (const auto& [name, value] : setup.environment) {
    if (value) {
      ::setenv(name.c_str(), value->c_str(), 1);
    } else {
      ::unsetenv(name.c_str());
    }
  }
  std::vector<char*> argv = {const_cast<char*>("runmax")};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  for (const auto& [resource, limit] : setup.limits) {
    const rlimit both{limit, limit};
    ::setrlimit(static_cast<__rlimit_resource>(resource), &both);
  }
  ::execv(RUNMAX_CLI, argv.data());
  ::_exit(127);
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& arguments, const CommandSetup& setup) {
  int out[2];
  int err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) {
    throw std::runtime_error("pipe");
  }
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork");
  if (pid == 0) child(arguments, setup, out[1], err[1]);
  ::close(out[1]);
  ::close(err[1]);
  if (setup.while_running) setup.while_running(pid);

  CommandResult result;
  pollfd ends[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  std::string* texts[2] = {&result.out, &result.err};
  int open_ends = 2;
  while (open_ends > 0) {
    ::poll(ends, 2, -1);
    for (int i = 0; i < 2; ++i) {
      if (ends[i].fd < 0 || ends[i].revents == 0) continue;
      char buffer[65536];
      const ssize_t got = ::read(ends[i].fd, buffer, sizeof buffer);
      if (got > 0) {
        texts[i]->append(buffer, static_cast<size_t>(got));
      } else {
        ::close(ends[i].fd);
        ends[i].fd = -1;
        --open_ends;
      }
    }
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = std::filesystem::temp_directory_path() / "runmax-test-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp");
  root_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(root_, ignored);
}

std::vector<std::string> TemporaryFolder::names() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(root_)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_bytes(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream stream(path, std::ios::binary);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!stream.flush()) throw std::runtime_error("cannot write " + path);
}

std::string error_fault(const CommandResult& result, const std::string& field, int exit_code) {
  const std::string seen = "exit " + std::to_string(result.exit_code) + ", stderr: " + result.err;
  if (result.exit_code != exit_code) return "wrong exit code; " + seen;
  if (!result.out.empty()) return "something on stdout: " + result.out;
  if (result.err.rfind("runmax: error: " + field + ": ", 0) != 0) return "wrong field; " + seen;
  if (result.err.find('\n') != result.err.size() - 1) return "not one line; " + seen;
  return "";
}

}  // namespace runmax::testing
