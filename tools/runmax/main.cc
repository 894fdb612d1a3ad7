// The runmax command. Every way to end is here: see error.h for the exit codes.
#include <unistd.h>

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "commands.h"
#include "error.h"
#include "options.h"
#include "output.h"
#include "text.h"

namespace runmax::cli {
namespace {

int run(int argc, char** argv) {
  const ParsedCommandLine parsed = parse_command_line(argc, argv);
  if (!parsed.options) {
    print(parsed.text);
    return kExitDone;
  }
  // Before the library starts threads: they inherit the blocked signals.
  watch_signals();
  switch (parsed.options->command) {
    case Options::Command::kAttend:
      return attend(*parsed.options);
    case Options::Command::kCheck:
      return check(*parsed.options);
    case Options::Command::kExplain:
      return explain(*parsed.options);
    case Options::Command::kList:
      return list(*parsed.options);
  }
  return kExitBadInput;
}

void write_error(std::string_view text) {
  while (!text.empty()) {
    const ssize_t done = ::write(STDERR_FILENO, text.data(), text.size());
    if (done <= 0) return;
    text.remove_prefix(static_cast<size_t>(done));
  }
}

// One line; with kExitUnsupported the reasons follow, a line each.
std::string error_text(const Error& error) {
  std::string_view message = error.what();
  std::string text = "runmax: error: ";
  while (true) {
    const size_t end =
        error.exit_code() == kExitUnsupported ? message.find('\n') : std::string_view::npos;
    text += printable(message.substr(0, end), std::string::npos) + "\n";
    if (end == std::string_view::npos || end + 1 == message.size()) return text;
    message.remove_prefix(end + 1);
  }
}

int main_or_error(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    write_error(error_text(error));
    return error.exit_code();
  } catch (const std::system_error& error) {  // a thread could not be started
    write_error("runmax: error: threads: " + std::string(error.what()) + "\n");
    return kExitBadInput;
  }
}

}  // namespace
}  // namespace runmax::cli

int main(int argc, char** argv) {
  try {
    return runmax::cli::main_or_error(argc, argv);
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {  // a container beyond its largest size
  }
  runmax::cli::write_error(
      "runmax: error: memory: is exhausted, must hold inputs, outputs and workspace\n");
  return runmax::cli::kExitBadInput;
}
