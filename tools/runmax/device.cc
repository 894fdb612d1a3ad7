#include "device.h"

#include "text.h"

namespace runmax::cli {

Device make_device(const Options& options, uint64_t isa_mask) {
  if (options.device_kind == RUNMAX_DEVICE_CUDA) {
    int32_t gpus = 0;
    require(runmax_device_count(RUNMAX_DEVICE_CUDA, &gpus));
    if (gpus == 0) fail("--device", "is cuda, must be cpu: {}", runmax_last_error());
    if (options.device_index >= gpus) {
      fail("--device", "is cuda:{}, must be below cuda:{}", options.device_index, gpus);
    }
  }
  runmax_device_options request{};
  request.struct_size = sizeof request;
  request.kind = options.device_kind;
  request.index = options.device_index;
  request.max_threads = options.threads;
  request.isa_mask = isa_mask;
  runmax_device* device = nullptr;
  require(runmax_device_create(&request, &device));
  return Device(device);
}

runmax_device_info info_of(const runmax_device* device) {
  runmax_device_info info{};
  info.struct_size = sizeof info;
  require(runmax_device_get_info(device, &info));
  return info;
}

Plan make_plan(const runmax_problem& problem, runmax_device* device) {
  runmax_plan* plan = nullptr;
  require(runmax_plan_create(&problem, device, &plan));
  return Plan(plan);
}

runmax_plan_info info_of(const runmax_plan* plan) {
  runmax_plan_info info{};
  info.struct_size = sizeof info;
  require(runmax_plan_get_info(plan, &info));
  return info;
}

void require_memory(const runmax_device* device, double bytes) {
  const auto available = static_cast<double>(info_of(device).memory_bytes);
  if (available > 0 && bytes > available) {
    fail("memory", "{} for the tensors, must be at most the {} of this machine", bytes_text(bytes),
         bytes_text(available));
  }
}

void execute(const runmax_plan* plan, runmax_device* device, const runmax_args& args) {
  const DeviceBuffer workspace(device, runmax_plan_workspace_size(plan));
  require(runmax_execute(plan, &args, workspace.get(), workspace.bytes(), nullptr));
  require(runmax_device_sync(device, nullptr));
}

}  // namespace runmax::cli
