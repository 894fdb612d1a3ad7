#include "roofs.h"

#include <sys/stat.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "device.h"
#include "error.h"
#include "input_file.h"
#include "output.h"

namespace runmax::cli {
namespace {

using nlohmann::json;

// "" where there is no place for one. Relative paths do not count (XDG base directory rules).
std::string cache_folder() {
  const auto absolute = [](const char* variable) -> std::string {
    const char* value = std::getenv(variable);
    return value != nullptr && value[0] == '/' ? value : "";
  };
  const std::string cache = absolute("XDG_CACHE_HOME");
  if (!cache.empty()) return cache + "/runmax";
  const std::string home = absolute("HOME");
  return home.empty() ? "" : home + "/.cache/runmax";
}

std::string key_of(const runmax_device_info& info) {
  return fmt::format("{}; isa {:#x}; {} threads", info.name, info.isa, info.max_threads);
}

json read_cache(const std::string& path) {
  try {
    const InputFile file("cache", path);
    std::string text(std::min<uint64_t>(file.size(), 1 << 20), '\0');
    file.read(0, text.data(), text.size());
    json cache = json::parse(text);
    if (cache.is_object()) return cache;
  } catch (const Error&) {
  } catch (const json::exception&) {
  }
  return json::object();
}

// 0 = unusable.
double positive(const json& entry, const char* name) {
  const auto it = entry.find(name);
  const bool usable = it != entry.end() && it->is_number() && it->get<double>() > 0;
  return usable ? it->get<double>() : 0;
}

void make_folders(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    ::mkdir(path.substr(0, slash).c_str(), 0700);
  }
}

void write_cache(const std::string& path, const json& cache) {
  try {
    make_folders(path);
    OutputSet files;
    OutputSet::File& file = files.add("cache", path);
    files.open(file);
    file.write(cache.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
    files.commit();
  } catch (const Error&) {
  }
}

}  // namespace

runmax_roofs machine_roofs(runmax_device* device) {
  const runmax_device_info info = info_of(device);
  const std::string key = key_of(info);
  const std::string folder = cache_folder();
  const std::string path = folder + "/roofs.json";
  json cache = folder.empty() ? json::object() : read_cache(path);

  runmax_roofs roofs{};
  roofs.struct_size = sizeof roofs;
  roofs.threads = info.max_threads;
  const json entry = cache.value(key, json::object());
  if (entry.is_object()) {
    roofs.flops_per_second = positive(entry, "flops_per_second");
    roofs.bytes_per_second = positive(entry, "bytes_per_second");
    if (roofs.flops_per_second > 0 && roofs.bytes_per_second > 0) return roofs;
  }

  require(runmax_measure_roofs(device, &roofs));
  cache[key] = {{"flops_per_second", roofs.flops_per_second},
                {"bytes_per_second", roofs.bytes_per_second}};
  if (!folder.empty()) write_cache(path, cache);
  return roofs;
}

}  // namespace runmax::cli
