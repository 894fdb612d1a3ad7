// check, explain and list: what they say is true.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "input_files.h"
#include "run_command.h"

namespace runmax::testing {
namespace {

using nlohmann::json;

// Measured roofs go to a folder of the test, once for all of them.
const CommandSetup& with_cache() {
  static const TemporaryFolder folder;
  static const CommandSetup setup = {.limits = {},
                                     .environment = {{"XDG_CACHE_HOME", folder.root()}},
                                     .stdout_path = "",
                                     .while_running = nullptr};
  return setup;
}

json run_json(std::vector<std::string> arguments) {
  arguments.push_back("--json");
  const CommandResult result = run_command(arguments, with_cache());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out);
}

void expect_begins(const std::string& text, const std::string& begin) {
  EXPECT_EQ(text.substr(0, begin.size()), begin);
}
void expect_holds(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "lacks '" << part << "':\n" << text;
}

// Operations required are a property of the problem, not of the way: also at 131072.
TEST(Explain, RequiredOperationsAreEqual) {
  for (const uint64_t length : {64u, 1000u, 131072u}) {
    const std::string n = std::to_string(length);
    const json report =
        run_json({"explain", "--problem", "q_len=" + n + " kv_len=" + n + " head_dim=64 causal"});
    const uint64_t pairs = length * (length + 1) / 2;
    EXPECT_EQ(report["visible_pairs"], pairs);
    EXPECT_EQ(report["plain"]["required_operations"], 2 * pairs * 128);
    EXPECT_EQ(report["tiled"]["required_operations"], 2 * pairs * 128);
    EXPECT_EQ(report["plain"]["executed_operations"], 2 * length * length * 128);
    EXPECT_GE(report["tiled"]["executed_operations"], 2 * pairs * 128);
    EXPECT_LE(report["tiled"]["executed_operations"].get<double>(),
              2.0 * static_cast<double>((length + 512) * (length + 512)) * 128);
    EXPECT_EQ(report["from_data"], false);
  }
}

TEST(Explain, TiledMemoryIsNotQuadratic) {
  const auto memory = [](const char* way, const char* length) {
    return run_json({"explain", "--problem",
                     std::string("head_dim=64 q_len=") + length})[way]["extra_memory_bytes"]
        .get<double>();
  };
  EXPECT_EQ(memory("plain", "65536"), 4.0 * 65536 * 65536);
  EXPECT_LE(memory("tiled", "65536"), 64.0 * (1 << 20));
  EXPECT_LE(memory("tiled", "131072"), 2.5 * memory("tiled", "65536"));
}

// Which side of the ridge depends on the machine; that it is the right side does not.
TEST(Explain, SideOfTheRoofline) {
  for (const char* length : {"64", "4096"}) {
    const json report =
        run_json({"explain", "--problem", std::string("head_dim=64 q_len=") + length});
    const double ridge = report["roofs"]["flops_per_second"].get<double>() /
                         report["roofs"]["bytes_per_second"].get<double>();
    for (const char* way : {"plain", "tiled"}) {
      const double intensity = report[way]["executed_operations"].get<double>() /
                               report[way]["slow_bytes"].get<double>();
      EXPECT_DOUBLE_EQ(report[way]["operations_per_byte"].get<double>(), intensity);
      EXPECT_EQ(report[way]["bound"], intensity >= ridge ? "compute" : "memory");
    }
  }
}

TEST(Explain, TextHasItsParts) {
  const CommandResult result = run_command(
      {"explain", "--problem", "q_len=131072 kv_len=131072 head_dim=64 causal"}, with_cache());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  expect_begins(result.out, "exact, not approximate");
  for (const char* part :
       {"estimated", "fast level", "operations required", "operations executed",
        "bytes to the slow level", "extra memory", "operations per byte", "-bound",
        "kernels considered", "What does not change", "operation count"}) {
    expect_holds(result.out, part);
  }
  // Equal for both, in print too.
  const size_t row = result.out.find("operations required");
  const std::string line = result.out.substr(row, result.out.find('\n', row) - row);
  EXPECT_NE(line.find("2.2 T"), line.rfind("2.2 T")) << line;
}

// With a file the counts come from its data.
TEST(Explain, CountsFromTheData) {
  const TemporaryFolder folder;
  StoredTensor mask{"mask", "BOOL", {1, 1, 4, 6}, std::string(24, '\0')};
  for (const int i : {0, 1, 7, 8, 9, 23}) mask.bytes[static_cast<size_t>(i)] = 1;
  write_bytes(folder.path("IN"),
              safetensors_bytes({f32_filled("q", {1, 3, 4, 8}), f32_filled("k", {1, 1, 6, 8}),
                                 f32_filled("v", {1, 1, 6, 2}), mask}));
  const json report = run_json({"explain", folder.path("IN")});
  EXPECT_EQ(report["from_data"], true);
  EXPECT_EQ(report["visible_pairs"], 3 * 6);
  EXPECT_EQ(report["tiled"]["required_operations"], 2 * 18 * 10);
  expect_holds(run_command({"explain", folder.path("IN")}, with_cache()).out,
               "counted     from the data: 18 visible pairs");
}

TEST(Explain, RoofsAreMeasuredOnce) {
  const TemporaryFolder folder;
  CommandSetup setup;
  setup.environment["XDG_CACHE_HOME"] = folder.root();
  const std::vector<std::string> arguments = {"explain", "--problem", "q_len=8", "--json"};
  const json first = json::parse(run_command(arguments, setup).out);
  const std::string cache = read_bytes(folder.path("runmax/roofs.json"));
  ASSERT_FALSE(cache.empty());
  EXPECT_GT(first["roofs"]["flops_per_second"], 0.0);
  EXPECT_GT(first["roofs"]["bytes_per_second"], 0.0);
  // Two measurements never agree to the last digit.
  EXPECT_EQ(json::parse(run_command(arguments, setup).out)["roofs"], first["roofs"]);
  // A broken cache is measured anew, not trusted and not fatal.
  for (const char* broken : {"[]", "\xff"}) {
    write_bytes(folder.path("runmax/roofs.json"), broken);
    const CommandResult result = run_command(arguments, setup);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_GT(json::parse(result.out)["roofs"]["flops_per_second"], 0.0);
  }
  // No place for a cache.
  setup.environment["XDG_CACHE_HOME"] = "/dev/null";
  EXPECT_EQ(run_command(arguments, setup).exit_code, 0);
  setup.environment["XDG_CACHE_HOME"] = std::nullopt;
  setup.environment["HOME"] = std::nullopt;
  EXPECT_EQ(run_command(arguments, setup).exit_code, 0);
}

TEST(Check, PassesOnFilesAndStrings) {
  const TemporaryFolder folder;
  write_bytes(folder.path("IN"),
              safetensors_bytes({f32_filled("q", {1, 2, 40, 8}), f32_filled("k", {1, 2, 50, 8}),
                                 f32_filled("v", {1, 2, 50, 8})}));
  const CommandResult result = run_command({"check", folder.path("IN"), "--causal"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");  // no progress line outside a terminal
  expect_holds(result.out, "passed");
  expect_holds(result.out, "plain");
  const json report = run_json({"check", "--problem",
                                "dtype=bf16 q_heads=4 kv_heads=2 q_len=65 kv_len=130 causal "
                                "fill=hostile poison_hidden"});
  EXPECT_EQ(report["passed"], true);
  EXPECT_EQ(report["rows_checked"], 4 * 65);
  EXPECT_GT(report["out"]["compared"], 0);
  EXPECT_LE(report["out"]["max_error_over_gate"], 1.0);
  EXPECT_EQ(run_command({"check", folder.path("IN"), "--quiet"}).out, "");
}

TEST(List, NamesEverything) {
  const json report = run_json({"list"});
  EXPECT_EQ(report["kernels"].size(), static_cast<size_t>(runmax_kernel_count()));
  EXPECT_EQ(report["devices"]["cpu"].size(), 1u);
  EXPECT_GE(report["devices"]["cpu"][0]["threads"], 1);
  EXPECT_EQ(report["environment"].size(), static_cast<size_t>(runmax_environment_count()) + 1);
  EXPECT_EQ(run_json({"list", "--kernels"}).size(), 1u);
  const CommandResult text = run_command({"list"});
  for (const auto& kernel : report["kernels"]) expect_holds(text.out, kernel["name"]);
  for (const auto& variable : report["environment"]) expect_holds(text.out, variable["name"]);
}

TEST(Help, IsThereForEveryCommand) {
  expect_begins(run_command({"--help"}).out, "runmax: exact, not approximate, attention");
  expect_begins(run_command({"--version"}).out, "runmax ");
  for (const char* command : {"attend", "check", "explain", "list"}) {
    const CommandResult result = run_command({command, "--help"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.err, "");
    expect_holds(result.out, "--json");
  }
}

}  // namespace
}  // namespace runmax::testing
