// The command line, as values. All text of flags is converted here, once; commands see numbers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runmax/runmax.h"

namespace runmax::cli {

enum class Layout { kUnspecified, kBhsd, kBshd, kThd };

struct Options {
  enum class Command { kAttend, kCheck, kExplain, kList };
  Command command = Command::kList;

  // What to compute on: a safetensors file, .npy files by tensor name, or a problem string.
  std::string in;
  std::string out;
  std::map<std::string, std::string> npy_inputs;   // tensor name ("seqused_q") -> path
  std::map<std::string, std::string> npy_outputs;  // "out", "lse", "d_q", ... -> path
  std::optional<std::string> problem;
  bool backward = false;  // explain --direction backward

  // How.
  Layout layout = Layout::kUnspecified;
  bool causal = false;
  int32_t diagonal_alignment = RUNMAX_ALIGN_BOTTOM_RIGHT;
  std::optional<int64_t> window_left;
  std::optional<int64_t> window_right;
  int64_t sink_tokens = 0;
  int64_t block_q = 0;
  int64_t block_kv = 0;
  std::optional<double> scale;
  double softcap = 0;
  double dropout = 0;
  uint64_t seed = 0;
  uint64_t offset = 0;
  bool deterministic = false;
  bool batch_invariant = false;
  std::string kernel;

  // Where.
  int32_t device_kind = RUNMAX_DEVICE_CPU;
  int32_t device_index = 0;
  int32_t threads = 0;

  bool list_kernels = false;
  bool list_devices = false;
  bool list_env = false;

  bool quiet = false;
  bool json = false;
};

// Names of the tensors that are read and of those that are written, in the glossary's words.
extern const std::vector<const char*> kInputTensors;
extern const std::vector<const char*> kOutputTensors;

// "seqused_q" -> "--seqused-q"
std::string flag_of(const std::string& tensor);

struct ParsedCommandLine {
  std::optional<Options> options;  // empty: `text` is to be printed (--help, --version)
  std::string text;
};
// Throws Error for bad usage.
ParsedCommandLine parse_command_line(int argc, char** argv);

}  // namespace runmax::cli
