// runmax attend: attention on files.
#include <chrono>
#include <set>

#include "commands.h"
#include "npy.h"
#include "output.h"
#include "request.h"
#include "safetensors.h"
#include "text.h"

namespace runmax::cli {
namespace {

using Clock = std::chrono::steady_clock;

void write_data(OutputSet::File& file, runmax_device* device, const Request::Output& output) {
  for_each_piece(device, output.pointer, output.bytes,
                 [&](const void* data, size_t bytes) { file.write(data, bytes); });
}

void write_safetensors(OutputSet& files, OutputSet::File& file, runmax_device* device,
                       const std::vector<Request::Output>& outputs) {
  std::vector<FileTensor> described;
  for (const Request::Output& output : outputs) {
    FileTensor& tensor = described.emplace_back();
    tensor.name = output.name;
    tensor.dtype = output.dtype;
    tensor.shape = output.file_shape;
  }
  files.open(file);
  file.write(safetensors_header(described));
  for (const Request::Output& output : outputs) write_data(file, device, output);
}

nlohmann::ordered_json describe(const Request::Output& output, const std::string& path) {
  return {{"name", output.name},
          {"dtype", dtype_label(output.dtype)},
          {"shape", output.file_shape},
          {"file", path}};
}

}  // namespace

int attend(const Options& options) {
  // Destinations first: nothing is computed that could not be written.
  OutputSet files;
  std::map<std::string, OutputSet::File*> destinations;
  if (!options.in.empty()) {
    destinations["OUT"] = &files.add("OUT", options.out);
  } else {
    for (const auto& [name, path] : options.npy_outputs) {
      destinations[name] = &files.add(flag_of(name), path);
    }
  }
  std::vector<FileTensor> inputs = open_inputs(options);
  for (const FileTensor& input : inputs) files.refuse_input(*input.file);

  const Device device = make_device(options);
  Request request(options, std::move(inputs));
  const Plan forward = make_plan(request.forward(), device.get());
  const Plan backward =
      request.wants_backward() ? make_plan(request.backward(), device.get()) : nullptr;
  request.load(device.get());
  const auto start = Clock::now();
  execute(forward.get(), device.get(), request.args());
  if (backward != nullptr) execute(backward.get(), device.get(), request.args());
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();

  std::vector<Request::Output> outputs = request.outputs();
  // The widest elements first, so that every tensor of the file is aligned to its element.
  std::stable_sort(outputs.begin(), outputs.end(), [](const auto& a, const auto& b) {
    return dtype_bytes(a.dtype) > dtype_bytes(b.dtype);
  });
  if (!options.in.empty()) {
    write_safetensors(files, *destinations.at("OUT"), device.get(), outputs);
  } else {
    for (const Request::Output& output : outputs) {
      OutputSet::File& file = *destinations.at(output.name);
      files.open(file);
      file.write(npy_header(output.dtype, output.file_shape));
      write_data(file, device.get(), output);
    }
  }

  const runmax_plan_info info = info_of(forward.get());
  const size_t workspace = runmax_plan_workspace_size(forward.get());
  std::string text;
  nlohmann::ordered_json json = {{"kernel", info.kernel},
                                 {"threads", info.threads},
                                 {"seconds", seconds},
                                 {"workspace_bytes", workspace},
                                 {"outputs", nlohmann::ordered_json::array()}};
  for (const char* name : kOutputTensors) {
    for (const Request::Output& output : outputs) {
      if (output.name != name) continue;
      const std::string path = options.in.empty() ? options.npy_outputs.at(name) : options.out;
      json["outputs"].push_back(describe(output, path));
      text += fmt::format("{:<14} {:<4} {} -> {}\n", name, dtype_label(output.dtype),
                          shape_text(output.file_shape), printable(path));
    }
  }
  text += fmt::format("{} with {} on {} thread{}, workspace {}\n", seconds_text(seconds),
                      info.kernel, info.threads, info.threads == 1 ? "" : "s",
                      bytes_text(static_cast<double>(workspace)));
  // Before the last step: a closed standard output is an error, and errors leave OUT as it was.
  if (options.json) {
    print_json(json);
  } else if (!options.quiet) {
    print(text);
  }
  files.commit();
  return kExitDone;
}

}  // namespace runmax::cli
