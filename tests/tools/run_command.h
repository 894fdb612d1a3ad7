// Runs the runmax program as a shell would, and folders that clean up after themselves.
#pragma once

#include <sys/resource.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace runmax::testing {

struct CommandResult {
  int exit_code = -1;  // 128 + number if a signal ended it
  std::string out;
  std::string err;
};

struct CommandSetup {
  std::map<int, rlim_t> limits;                                   // RLIMIT_FSIZE, ...
  std::map<std::string, std::optional<std::string>> environment;  // nullopt = unset
  std::string stdout_path;                                        // "" = into `out`
  std::function<void(int pid)> while_running;                     // called once it has started
};

CommandResult run_command(const std::vector<std::string>& arguments,
                          const CommandSetup& setup = {});

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path(const std::string& name) const { return root_ + "/" + name; }
  const std::string& root() const { return root_; }
  std::vector<std::string> names() const;  // sorted, hidden ones too

 private:
  std::string root_;
};

std::string read_bytes(const std::string& path);
void write_bytes(const std::string& path, const std::string& bytes);

// "" if the result is an error as the command promises it: this exit code, nothing on stdout, and
// on stderr "runmax: error: FIELD: ..." in exactly one line. Otherwise what is wrong.
std::string error_fault(const CommandResult& result, const std::string& field, int exit_code = 2);

}  // namespace runmax::testing
