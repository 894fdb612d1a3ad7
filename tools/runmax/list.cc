// runmax list: what this library and this machine have.
#include <algorithm>
#include <cstdlib>

#include "commands.h"
#include "device.h"
#include "text.h"

namespace runmax::cli {
namespace {

using nlohmann::ordered_json;

const char* op_name(int32_t op) {
  return op == RUNMAX_FORWARD ? "forward" : op == RUNMAX_BACKWARD ? "backward" : "merge";
}

std::vector<std::string> isa_names(uint64_t isa) {
  std::vector<std::string> names;
  for (int bit = 0; bit < 64; ++bit) {
    const char* name = (isa >> bit & 1) != 0 ? runmax_isa_name(uint64_t{1} << bit) : nullptr;
    if (name != nullptr) names.push_back(name);
  }
  return names;
}

ordered_json kernels() {
  ordered_json all = ordered_json::array();
  for (int32_t i = 0; i < runmax_kernel_count(); ++i) {
    runmax_kernel_info info{};
    info.struct_size = sizeof info;
    require(runmax_kernel_get(i, &info));
    all.push_back({{"name", info.name},
                   {"op", op_name(info.op)},
                   {"device", info.device_kind == RUNMAX_DEVICE_CPU ? "cpu" : "cuda"},
                   {"isa", isa_names(info.required_isa)},
                   {"summary", info.summary}});
  }
  return all;
}

ordered_json devices() {
  ordered_json all;
  all["cpu"] = ordered_json::array();
  const Device cpu = make_device({});
  const runmax_device_info info = info_of(cpu.get());
  all["cpu"].push_back({{"name", info.name},
                        {"threads", info.max_threads},
                        {"isa", isa_names(info.isa)},
                        {"isa_found", isa_names(info.isa_found)},
                        {"l1_bytes", info.l1_bytes},
                        {"l2_bytes", info.l2_bytes},
                        {"l3_bytes", info.l3_bytes},
                        {"memory_bytes", info.memory_bytes}});
  int32_t gpus = 0;
  require(runmax_device_count(RUNMAX_DEVICE_CUDA, &gpus));
  const std::string reason = runmax_last_error();
  all["cuda"] = ordered_json::array();
  for (int32_t i = 0; i < gpus; ++i) {
    Options options;
    options.device_kind = RUNMAX_DEVICE_CUDA;
    options.device_index = i;
    const Device gpu = make_device(options);
    const runmax_device_info gpu_info = info_of(gpu.get());
    all["cuda"].push_back({{"name", gpu_info.name}, {"memory_bytes", gpu_info.memory_bytes}});
  }
  if (gpus == 0) all["cuda_reason"] = reason;
  return all;
}

ordered_json environment() {
  ordered_json all = ordered_json::array();
  for (int32_t i = 0; i < runmax_environment_count(); ++i) {
    runmax_environment_info info{};
    info.struct_size = sizeof info;
    require(runmax_environment_get(i, &info));
    all.push_back({{"name", info.name},
                   {"value", info.value == nullptr ? ordered_json() : ordered_json(info.value)},
                   {"summary", info.summary}});
  }
  // The only one that the command itself reads.
  const char* cache = std::getenv("XDG_CACHE_HOME");
  all.push_back({{"name", "XDG_CACHE_HOME"},
                 {"value", cache == nullptr ? ordered_json() : ordered_json(cache)},
                 {"summary", "the command keeps measured roofs below it (default ~/.cache)"}});
  return all;
}

std::string joined(const ordered_json& names) {
  std::string text;
  for (const auto& name : names) {
    if (!text.empty()) text += ' ';
    text += name.get<std::string>();
  }
  return text;
}

std::string text_of(const ordered_json& lists) {
  std::string text;
  const auto heading = [&](const char* name) {
    if (lists.size() > 1) text += fmt::format("{}{}\n", text.empty() ? "" : "\n", name);
  };
  if (lists.contains("kernels")) {
    heading("kernels");
    size_t width = 0;
    for (const auto& kernel : lists["kernels"]) {
      width = std::max(width, kernel["name"].get<std::string>().size());
    }
    for (const auto& kernel : lists["kernels"]) {
      text +=
          fmt::format("  {:<{}}  {:<8}  {:<4}  {:<12}  {}\n", kernel["name"].get<std::string>(),
                      width, kernel["op"].get<std::string>(), kernel["device"].get<std::string>(),
                      joined(kernel["isa"]), kernel["summary"].get<std::string>());
    }
  }
  if (lists.contains("devices")) {
    heading("devices");
    const auto& cpu = lists["devices"]["cpu"][0];
    const auto bytes = [&](const char* name) { return bytes_text(cpu[name].get<double>()); };
    text += fmt::format("  cpu     {}, {} threads, {}\n", printable(cpu["name"].get<std::string>()),
                        cpu["threads"].get<int>(), joined(cpu["isa"]));
    text += fmt::format("          L1 {}, L2 {}, L3 {}, memory {}\n", bytes("l1_bytes"),
                        bytes("l2_bytes"), bytes("l3_bytes"), bytes("memory_bytes"));
    int index = 0;
    for (const auto& gpu : lists["devices"]["cuda"]) {
      text += fmt::format("  cuda:{}  {}, memory {}\n", index++, gpu["name"].get<std::string>(),
                          bytes_text(gpu["memory_bytes"].get<double>()));
    }
    if (lists["devices"].contains("cuda_reason")) {
      text += fmt::format("  cuda    none: {}\n",
                          printable(lists["devices"]["cuda_reason"].get<std::string>()));
    }
  }
  if (lists.contains("environment")) {
    heading("environment");
    for (const auto& variable : lists["environment"]) {
      text +=
          fmt::format("  {:<16} {:<12} {}\n", variable["name"].get<std::string>(),
                      variable["value"].is_null() ? "(not set)"
                                                  : printable(variable["value"].get<std::string>()),
                      variable["summary"].get<std::string>());
    }
  }
  return text;
}

}  // namespace

int list(const Options& options) {
  const bool all = !options.list_kernels && !options.list_devices && !options.list_env;
  ordered_json lists;
  if (all || options.list_kernels) lists["kernels"] = kernels();
  if (all || options.list_devices) lists["devices"] = devices();
  if (all || options.list_env) lists["environment"] = environment();
  if (options.json) {
    print_json(lists);
  } else {
    print(text_of(lists));
  }
  return kExitDone;
}

}  // namespace runmax::cli
