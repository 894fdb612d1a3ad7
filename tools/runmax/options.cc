#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <deque>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "error.h"

namespace runmax::cli {

const std::vector<const char*> kInputTensors = {"q",
                                                "k",
                                                "v",
                                                "bias",
                                                "mask",
                                                "alibi_slopes",
                                                "sink",
                                                "seqused_q",
                                                "seqused_kv",
                                                "prefix_len",
                                                "diagonal_offset",
                                                "segment_ids_q",
                                                "segment_ids_kv",
                                                "block_index",
                                                "cu_seqlens_q",
                                                "cu_seqlens_kv",
                                                "d_out",
                                                "d_lse"};
const std::vector<const char*> kOutputTensors = {"out", "lse",    "lse_lo", "d_q",           "d_k",
                                                 "d_v", "d_bias", "d_sink", "d_alibi_slopes"};

std::string flag_of(const std::string& tensor) {
  std::string flag = "--" + tensor;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

namespace {

using Values = std::map<std::string, std::string>;  // "--window" -> "3,0", as typed

// One flag of a command. CLI11 lays out the help and splits the line; the text is converted below,
// so that every message names the flag, the value and the rule in the same way.
struct Flag {
  const char* name;   // "--window"
  const char* value;  // "LEFT,RIGHT"; nullptr for a switch
  const char* help;
};

const std::vector<Flag> kProblemFlags = {
    {"--causal", nullptr, "A row sees no key after its own position"},
    {"--align", "bottom_right|top_left", "Which corner the diagonal ends in (bottom_right)"},
    {"--window", "LEFT,RIGHT", "Keys before and after the diagonal that stay visible; -1: all"},
    {"--sink-tokens", "N", "Leading keys that the window never hides"},
    {"--block-size", "Q,KV", "Block of block_index in rows and keys"},
    {"--scale", "X", "Factor of q k^T (1/sqrt(head_dim))"},
    {"--softcap", "C", "Scores become C*tanh(score/C)"},
    {"--dropout", "P", "Probability of dropping a weight; needs --seed"},
    {"--seed", "N", "Seed of the dropout mask"},
    {"--offset", "N", "Offset into the dropout mask's random numbers (0)"},
    {"--layout", "bhsd|bshd|thd", "Order of q, k, v, out: batch head sequence dim (bhsd)"},
    {"--deterministic", nullptr, "The same bits in every run (always so on the CPU)"},
    {"--batch-invariant", nullptr, "A row's bits depend on its own data only"},
    {"--kernel", "NAME", "Use this kernel (runmax list --kernels)"}};
const std::vector<Flag> kDeviceFlags = {
    {"--device", "cpu|cuda|cuda:N", "Where to compute (cpu)"},
    {"--threads", "N", "CPU threads (all that the process may use)"}};
const Flag kProblem = {"--problem", "STRING", "A problem string instead of a file"};
const Flag kDirection = {"--direction", "forward|backward", "Which of the two to explain"};
const Flag kJson = {"--json", nullptr, "Print the result as JSON"};
const Flag kQuiet = {"--quiet", nullptr, "Print nothing but errors"};

struct CommandSpec {
  Options::Command command;
  const char* name;
  const char* summary;
  const char* footer;
  std::vector<const char*> positionals;
  std::vector<Flag> flags;
};

std::vector<Flag> joined(std::initializer_list<std::vector<Flag>> parts) {
  std::vector<Flag> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// --q FILE ... --d-alibi-slopes FILE; the texts live as long as the program.
std::vector<Flag> npy_flags() {
  static std::deque<std::string> names;
  std::vector<Flag> flags;
  for (const auto* list : {&kInputTensors, &kOutputTensors}) {
    for (const char* tensor : *list) {
      flags.push_back({names.emplace_back(flag_of(tensor)).c_str(), "FILE.npy",
                       list == &kInputTensors ? "Read from" : "Write to"});
    }
  }
  return flags;
}

const std::vector<CommandSpec>& commands() {
  static const std::vector<CommandSpec> all = {
      {Options::Command::kAttend,
       "attend",
       "Compute attention on files",
       "Tensors read: q, k, v and, where given, bias, mask, alibi_slopes, sink, seqused_q,\n"
       "seqused_kv, prefix_len, diagonal_offset, segment_ids_q, segment_ids_kv, block_index,\n"
       "cu_seqlens_q, cu_seqlens_kv; d_out or d_lse ask for the gradients too.\n"
       "Tensors written: out, lse, lse_lo (and d_q, d_k, d_v, ...).\n\n"
       "Examples:\n"
       "  runmax attend in.safetensors out.safetensors --causal\n"
       "  runmax attend in.safetensors out.safetensors --causal --window 1023,-1 --scale=0.125\n"
       "  runmax attend --q q.npy --k k.npy --v v.npy --out out.npy --lse lse.npy\n",
       {"IN", "OUT"},
       joined({kProblemFlags, kDeviceFlags, {kQuiet, kJson}, npy_flags()})},
      {Options::Command::kCheck,
       "check",
       "Compute, and compare with the float64 oracle",
       "Exit status 1 if a result is wrong.\n\n"
       "Examples:\n"
       "  runmax check in.safetensors --causal\n"
       "  runmax check --problem 'dtype=bf16 q_heads=8 kv_heads=2 q_len=129 kv_len=1025 causal'\n",
       {"IN"},
       joined({{kProblem}, kProblemFlags, kDeviceFlags, {kQuiet, kJson}})},
      {Options::Command::kExplain,
       "explain",
       "Say what will be computed, how, and at what cost",
       "Counts come from the data of IN; for a problem string they are an estimate.\n\n"
       "Examples:\n"
       "  runmax explain in.safetensors --causal\n"
       "  runmax explain --problem 'dtype=f32 q_len=131072 kv_len=131072 causal'\n",
       {"IN"},
       joined({{kProblem, kDirection}, kProblemFlags, kDeviceFlags, {kJson}})},
      {Options::Command::kList,
       "list",
       "List kernels, devices and environment variables",
       "Without a flag: all three.\n",
       {},
       {{"--kernels", nullptr, "Kernels, in the planner's order"},
        {"--devices", nullptr, "Devices, and why there is no GPU"},
        {"--env", nullptr, "Environment variables that are read"},
        kJson}}};
  return all;
}

// ----------------------------------------------------------------------- splitting the line

const Flag* find_flag(const CommandSpec& spec, std::string_view name) {
  for (const Flag& flag : spec.flags) {
    if (name == flag.name) return &flag;
  }
  return nullptr;
}

// Rewrites "--flag value" as "--flag=value", so that a value may begin with a dash, and refuses
// what can be refused in our own words: unknown and repeated flags, missing and surplus values.
std::vector<std::string> normalise(const CommandSpec& spec, int argc, char** argv) {
  std::vector<std::string> words;
  std::set<std::string> seen;
  bool flags_end = false;
  size_t positionals = 0;
  for (int i = 2; i < argc; ++i) {
    std::string word = argv[i];
    if (flags_end || word.size() < 2 || word[0] != '-') {
      if (++positionals > spec.positionals.size()) {
        fail("usage", "{} takes {} files, '{}' is one too many", spec.name, spec.positionals.size(),
             printable(word));
      }
      if (word.empty()) fail(spec.positionals[positionals - 1], "is empty, must be a file");
      words.push_back(std::move(word));
      continue;
    }
    if (word == "--") {
      flags_end = true;
      words.push_back(std::move(word));
      continue;
    }
    if (word == "-h" || word == "--help") return {"--help"};
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const Flag* flag = find_flag(spec, name);
    if (flag == nullptr) {
      fail(printable(name), "is not a flag of {}, see runmax {} --help", spec.name, spec.name);
    }
    if (!seen.insert(name).second) fail(name, "is given twice, must be given once");
    if (flag->value == nullptr) {
      if (equals != std::string::npos) {
        fail(name, "has the value '{}', takes none", printable(word.substr(equals + 1)));
      }
    } else {
      if (equals == std::string::npos) {
        if (++i == argc) fail(name, "has no value, must have {}", flag->value);
        word += std::string("=") + argv[i];
      }
      if (word.back() == '=' && word.size() == name.size() + 1) {
        fail(name, "is empty, must be {}", flag->value);
      }
    }
    words.push_back(std::move(word));
  }
  return words;
}

// ----------------------------------------------------------------------- converting the values

template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return value;
}

template <class T>
T integer(const std::string& flag, std::string_view text, T low,
          T high = std::numeric_limits<T>::max()) {
  const std::optional<T> value = parse_number<T>(text);
  if (!value || *value < low || *value > high) {
    fail(flag, "is {}, must be an integer in [{}, {}]", printable(text), low, high);
  }
  return *value;
}

double real(const std::string& flag, std::string_view text) {
  const std::optional<double> value = parse_number<double>(text);
  if (!value) fail(flag, "is {}, must be a number", printable(text));
  return *value;
}

std::pair<std::string_view, std::string_view> two(const std::string& flag, std::string_view text,
                                                  const char* form) {
  const size_t comma = text.find(',');
  if (comma == std::string_view::npos || text.find(',', comma + 1) != std::string_view::npos) {
    fail(flag, "is {}, must be {}", printable(text), form);
  }
  return {text.substr(0, comma), text.substr(comma + 1)};
}

std::optional<int64_t> window_side(const char* side, std::string_view text) {
  const std::optional<int64_t> value = parse_number<int64_t>(text);
  if (!value || *value < -1) {
    fail("--window", "{} is {}, must be an integer from 0 on, or -1 (unbounded)", side,
         printable(text));
  }
  return *value < 0 ? std::nullopt : value;
}

void convert_problem(const Values& values, Options& options) {
  const auto given = [&](const char* name) -> const std::string* {
    const auto it = values.find(name);
    return it == values.end() ? nullptr : &it->second;
  };
  options.causal = given("--causal") != nullptr;
  options.deterministic = given("--deterministic") != nullptr;
  options.batch_invariant = given("--batch-invariant") != nullptr;
  options.quiet = given("--quiet") != nullptr;
  options.json = given("--json") != nullptr;
  options.list_kernels = given("--kernels") != nullptr;
  options.list_devices = given("--devices") != nullptr;
  options.list_env = given("--env") != nullptr;
  if (const auto* text = given("--align")) {
    if (*text == "top_left") {
      options.diagonal_alignment = RUNMAX_ALIGN_TOP_LEFT;
    } else if (*text != "bottom_right") {
      fail("--align", "is {}, must be bottom_right or top_left", printable(*text));
    }
  }
  if (const auto* text = given("--window")) {
    const auto [left, right] = two("--window", *text, "LEFT,RIGHT");
    options.window_left = window_side("LEFT", left);
    options.window_right = window_side("RIGHT", right);
  }
  if (const auto* text = given("--sink-tokens")) {
    options.sink_tokens = integer<int64_t>("--sink-tokens", *text, 0);
  }
  if (const auto* text = given("--block-size")) {
    const auto [q, kv] = two("--block-size", *text, "Q,KV");
    options.block_q = integer<int64_t>("--block-size", q, 1);
    options.block_kv = integer<int64_t>("--block-size", kv, 1);
  }
  if (const auto* text = given("--scale")) options.scale = real("--scale", *text);
  if (const auto* text = given("--softcap")) options.softcap = real("--softcap", *text);
  if (const auto* text = given("--dropout")) {
    options.dropout = real("--dropout", *text);
    if (!given("--seed")) fail("--dropout", "is given without --seed, must have both");
  }
  for (const char* name : {"--seed", "--offset"}) {
    if (given(name) && !given("--dropout")) {
      fail(name, "is given without --dropout, must have both");
    }
  }
  if (const auto* text = given("--seed")) options.seed = integer<uint64_t>("--seed", *text, 0);
  if (const auto* text = given("--offset")) {
    options.offset = integer<uint64_t>("--offset", *text, 0);
  }
  if (const auto* text = given("--layout")) {
    if (*text == "bhsd") {
      options.layout = Layout::kBhsd;
    } else if (*text == "bshd") {
      options.layout = Layout::kBshd;
    } else if (*text == "thd") {
      options.layout = Layout::kThd;
    } else {
      fail("--layout", "is {}, must be bhsd, bshd or thd", printable(*text));
    }
  }
  if (const auto* text = given("--kernel")) {
    // A name with a line break would make an error of the library more than one line.
    if (printable(*text) != *text) fail("--kernel", "is {}, must be a name", printable(*text));
    options.kernel = *text;
  }
  if (const auto* text = given("--device")) {
    std::string_view rest = *text;
    if (rest.substr(0, 4) == "cuda") {
      options.device_kind = RUNMAX_DEVICE_CUDA;
      rest.remove_prefix(4);
      if (!rest.empty()) {
        if (rest[0] != ':')
          fail("--device", "is {}, must be cpu, cuda or cuda:N", printable(*text));
        options.device_index = integer<int32_t>("--device", rest.substr(1), 0);
      }
    } else if (rest != "cpu") {
      fail("--device", "is {}, must be cpu, cuda or cuda:N", printable(*text));
    }
  }
  if (const auto* text = given("--threads")) {
    options.threads = integer<int32_t>("--threads", *text, 1, 1024);
  }
  if (const auto* text = given("--direction")) {
    if (*text != "forward" && *text != "backward") {
      fail("--direction", "is {}, must be forward or backward", printable(*text));
    }
    options.backward = *text == "backward";
  }
  if (const auto* text = given("--problem")) options.problem = *text;
  for (const auto& [list, into] : {std::pair(&kInputTensors, &options.npy_inputs),
                                   std::pair(&kOutputTensors, &options.npy_outputs)}) {
    for (const char* tensor : *list) {
      if (const auto* path = given(flag_of(tensor).c_str())) (*into)[tensor] = *path;
    }
  }
}

// Files, npy flags and --problem exclude each other.
void check_inputs(const Values& values, const Options& options) {
  if (options.command == Options::Command::kAttend) {
    const bool npy = !options.npy_inputs.empty() || !options.npy_outputs.empty();
    if (!options.in.empty()) {
      if (npy) {
        const auto& first =
            options.npy_inputs.empty() ? *options.npy_outputs.begin() : *options.npy_inputs.begin();
        fail(flag_of(first.first), "is given beside IN, must be safetensors or .npy files");
      }
      if (options.out.empty()) fail("OUT", "is missing, must be a file: runmax attend IN OUT");
      return;
    }
    if (!npy) {
      fail("IN", "is missing, must be a file: runmax attend IN OUT, or --q, --k, --v, --out");
    }
    for (const char* tensor : {"q", "k", "v"}) {
      if (!options.npy_inputs.count(tensor)) fail(flag_of(tensor), "is missing, must be a file");
    }
    if (options.npy_outputs.empty()) fail("--out", "is missing, must be a file");
    return;
  }
  if (options.command == Options::Command::kList) return;
  if (options.in.empty() && !options.problem) {
    fail("IN", "is missing, must be a file, or --problem 'STRING'");
  }
  if (!options.problem) return;
  if (!options.in.empty()) fail("--problem", "is given beside IN, must be one of them");
  for (const auto& [flag, text] : values) {
    // The string says all this itself; two sources of truth would have to be ranked.
    if (flag != "--problem" && flag != "--direction" && flag != "--device" && flag != "--quiet" &&
        flag != "--json") {
      fail(flag, "is given beside --problem, must be a word of the problem string");
    }
  }
}

std::string version_text() {
  const int version = runmax_version();
  return fmt::format("runmax {}.{}.{}\n", version / 1000000, version / 1000 % 1000, version % 1000);
}

std::string help_text() {
  std::string text =
      "runmax: exact, not approximate, attention, tile by tile with an online softmax\n\n"
      "Usage: runmax COMMAND ...\n\nCommands:\n";
  for (const CommandSpec& spec : commands()) {
    text += fmt::format("  {:<9} {}\n", spec.name, spec.summary);
  }
  text +=
      "\n`runmax COMMAND --help` says more; `runmax --version` prints the version.\n\n"
      "Examples:\n"
      "  runmax attend in.safetensors out.safetensors --causal\n"
      "  runmax check in.safetensors --causal\n"
      "  runmax explain --problem 'dtype=f32 q_len=131072 kv_len=131072 causal'\n\n"
      "Exit status: 0 done; 1 check found a wrong result; 2 bad usage or input, one line on\n"
      "stderr; 3 no kernel supports the request; 130 interrupted. OUT is written whole or not\n"
      "at all.\n";
  return text;
}

std::string command_names() {
  std::string names;
  for (const CommandSpec& spec : commands()) names += fmt::format("{} ", spec.name);
  return names + "(runmax --help)";
}

}  // namespace

ParsedCommandLine parse_command_line(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--help" || first == "-h" || first == "help") return {std::nullopt, help_text()};
  if (first == "--version") return {std::nullopt, version_text()};
  const auto spec = std::find_if(commands().begin(), commands().end(),
                                 [&](const CommandSpec& each) { return first == each.name; });
  if (spec == commands().end()) {
    if (first.empty()) fail("command", "is missing, must be one of {}", command_names());
    fail("command", "is {}, must be one of {}", printable(first), command_names());
  }
  std::vector<std::string> words = normalise(*spec, argc, argv);

  Options options;
  options.command = spec->command;
  Values values;
  std::map<std::string, std::string> positionals;
  CLI::App app(spec->summary, fmt::format("runmax {}", spec->name));
  app.footer(spec->footer);
  for (const char* name : spec->positionals) {
    app.add_option(name, positionals[name],
                   fmt::format("{} file", std::string_view(name) == "IN" ? "Input safetensors"
                                                                         : "Output safetensors"))
        ->option_text(" ");
  }
  for (const Flag& flag : spec->flags) {
    const bool is_npy = flag.value != nullptr && std::string_view(flag.value) == "FILE.npy";
    CLI::Option* option =
        flag.value == nullptr
            ? app.add_flag_callback(
                  flag.name, [&values, &flag] { values[flag.name] = ""; }, flag.help)
            : app.add_option_function<std::string>(
                  flag.name,
                  [&values, &flag](const std::string& text) { values[flag.name] = text; },
                  flag.help);
    if (flag.value != nullptr) option->option_text(flag.value);
    if (is_npy) option->group(".npy files, instead of IN and OUT");
  }
  try {
    std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
    app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    return {std::nullopt, app.help()};
  } catch (const CLI::ParseError& error) {
    fail("usage", "{}, see runmax {} --help", printable(error.what()), spec->name);
  }
  options.in = positionals["IN"];
  options.out = positionals["OUT"];
  convert_problem(values, options);
  check_inputs(values, options);
  return {std::move(options), ""};
}

}  // namespace runmax::cli
