// C entry points: devices, memory, the library's own facts. Marshalling and error text only.
#include <cstring>
#include <iterator>

#include "api/handles.h"
#include "api/last_error.h"
#include "core/abi.h"
#include "device/cpu_features.h"
#include "device/cuda_backend.h"
#include "device/environment.h"
#include "registry/kernel_table.h"

namespace runmax::api {
namespace {

Status create(const runmax_device_options* options, runmax_device** device) {
  RUNMAX_RETURN_IF_ERROR(require(device, "device"));
  runmax_device_options current{};
  if (options != nullptr) {
    RUNMAX_RETURN_IF_ERROR(import_struct(*options, kFirstDeviceOptionsSize, current));
  }
  Result<std::unique_ptr<Device>> created = create_device(options != nullptr ? &current : nullptr);
  if (!created.is_ok()) return created.status();
  *device = new runmax_device{std::move(created.value())};
  return Status::ok();
}

void describe(const DeviceInfo& from, runmax_device_info& to) {
  to.kind = from.kind;
  to.index = from.index;
  to.max_threads = from.max_threads;
  to.isa = from.isa;
  to.isa_found = from.isa_found;
  to.l1_bytes = from.l1_bytes;
  to.l2_bytes = from.l2_bytes;
  to.l3_bytes = from.l3_bytes;
  to.memory_bytes = from.memory_bytes;
  std::strncpy(to.name, from.name.c_str(), sizeof to.name - 1);
}

Status index_in(const char* field, int32_t index, int32_t count) {
  if (index >= 0 && index < count) return Status::ok();
  return Status::invalid(
      field, "is " + std::to_string(index) + ", must be in [0, " + std::to_string(count) + ")");
}

// What runmax_has_feature() answers 1 to.
constexpr const char* kFeatures[] = {
    "forward",
    "backward",
    "merge",
    "f32",
    "f64",
    "bf16",
    "f16",
    "gqa",
    "causal",
    "window",
    "softcap",
    "alibi",
    "bias",
    "sink",
    "mask",
    "segments",
    "prefix",
    "packed",
    "seqused",
    "dropout",
    "split_kv",
    "lse_lo",
    "block_selection",
    "keep_unused",
    "batch_invariant",
};

}  // namespace
}  // namespace runmax::api

using namespace runmax;
using namespace runmax::api;

runmax_status runmax_device_count(int32_t kind, int32_t* count) noexcept {
  std::string reason;
  const runmax_status status = guarded([&]() -> Status {
    RUNMAX_RETURN_IF_ERROR(require(count, "count"));
    if (kind != RUNMAX_DEVICE_CPU && kind != RUNMAX_DEVICE_CUDA) {
      return Status::invalid("kind", "is " + std::to_string(kind) +
                                         ", must be RUNMAX_DEVICE_CPU or RUNMAX_DEVICE_CUDA");
    }
    *count = device_count(kind, reason);
    return Status::ok();
  });
  // Not an error, but the reason is worth having.
  if (status == RUNMAX_OK && *count == 0) (void)report({RUNMAX_OK, "kind", std::move(reason)});
  return status;
}

runmax_status runmax_device_create(const runmax_device_options* options,
                                   runmax_device** device) noexcept {
  return guarded([&] { return create(options, device); });
}

void runmax_device_destroy(runmax_device* device) noexcept { delete device; }

runmax_status runmax_device_get_info(const runmax_device* device,
                                     runmax_device_info* info) noexcept {
  return guarded([&]() -> Status {
    RUNMAX_RETURN_IF_ERROR(require(device, "device"));
    runmax_device_info result{};
    describe(device->implementation->info(), result);
    return export_struct(result, kFirstDeviceInfoSize, info);
  });
}

runmax_status runmax_device_alloc(runmax_device* device, size_t bytes, void** pointer) noexcept {
  return guarded([&]() -> Status {
    RUNMAX_RETURN_IF_ERROR(require(device, "device"));
    RUNMAX_RETURN_IF_ERROR(require(pointer, "pointer"));
    return device->implementation->alloc(bytes, pointer);
  });
}

runmax_status runmax_device_free(runmax_device* device, void* pointer) noexcept {
  return guarded([&]() -> Status {
    RUNMAX_RETURN_IF_ERROR(require(device, "device"));
    return device->implementation->free(pointer);
  });
}

runmax_status runmax_device_copy(runmax_device* device, void* to, const void* from, size_t bytes,
                                 int32_t direction, void* stream) noexcept {
  return guarded([&]() -> Status {
    RUNMAX_RETURN_IF_ERROR(require(device, "device"));
    if (bytes == 0) return Status::ok();
    RUNMAX_RETURN_IF_ERROR(require(to, "to"));
    RUNMAX_RETURN_IF_ERROR(require(from, "from"));
    return device->implementation->copy(to, from, bytes, direction, stream);
  });
}

runmax_status runmax_device_sync(runmax_device* device, void* stream) noexcept {
  return guarded([&]() -> Status {
    RUNMAX_RETURN_IF_ERROR(require(device, "device"));
    return device->implementation->sync(stream);
  });
}

runmax_status runmax_measure_roofs(runmax_device* device, runmax_roofs* roofs) noexcept {
  return guarded([&]() -> Status {
    RUNMAX_RETURN_IF_ERROR(require(device, "device"));
    runmax_roofs result{};
    RUNMAX_RETURN_IF_ERROR(device->implementation->measure_roofs(result));
    return export_struct(result, kFirstRoofsSize, roofs);
  });
}

const char* runmax_last_error(void) noexcept { return last_message(); }
const char* runmax_last_error_field(void) noexcept { return last_field(); }

const char* runmax_status_name(runmax_status status) noexcept {
  constexpr const char* kNames[] = {
      "OK", "INVALID_ARGUMENT", "UNSUPPORTED", "OUT_OF_MEMORY", "DEVICE_ERROR", "INTERNAL_ERROR"};
  const bool known = status >= 0 && status < static_cast<int32_t>(std::size(kNames));
  return known ? kNames[status] : "UNKNOWN";
}

int32_t runmax_version(void) noexcept {
  return RUNMAX_VERSION_MAJOR * 1000000 + RUNMAX_VERSION_MINOR * 1000 + RUNMAX_VERSION_PATCH;
}

int32_t runmax_has_feature(const char* name) noexcept {
  if (name == nullptr) return 0;
  for (const char* feature : kFeatures) {
    if (std::strcmp(feature, name) == 0) return 1;
  }
  bool found = false;
  if (std::strcmp(name, "cuda") == 0) {
    (void)guarded([&]() -> Status {
      std::string reason;
      found = cuda_backend(reason) != nullptr;
      return Status::ok();
    });
  }
  return found ? 1 : 0;
}

int32_t runmax_kernel_count(void) noexcept { return static_cast<int32_t>(kernel_table().size()); }

runmax_status runmax_kernel_get(int32_t index, runmax_kernel_info* info) noexcept {
  return guarded([&]() -> Status {
    RUNMAX_RETURN_IF_ERROR(index_in("index", index, runmax_kernel_count()));
    const KernelEntry& kernel = kernel_table()[static_cast<size_t>(index)];
    runmax_kernel_info result{};
    result.device_kind = kernel.device_kind;
    result.op = kernel.op;
    result.required_isa = kernel.required_isa;
    result.name = kernel.name;
    result.summary = kernel.summary;
    return export_struct(result, kFirstKernelInfoSize, info);
  });
}

int32_t runmax_environment_count(void) noexcept {
  return static_cast<int32_t>(environment().size());
}

runmax_status runmax_environment_get(int32_t index, runmax_environment_info* info) noexcept {
  return guarded([&]() -> Status {
    RUNMAX_RETURN_IF_ERROR(index_in("index", index, runmax_environment_count()));
    const EnvironmentVariable& variable = environment()[static_cast<size_t>(index)];
    runmax_environment_info result{};
    result.name = variable.name;
    result.summary = variable.summary;
    result.value = variable.value;
    return export_struct(result, kFirstEnvironmentInfoSize, info);
  });
}

uint64_t runmax_isa_from_name(const char* name) noexcept {
  return name == nullptr ? 0 : isa_from_name(name);
}
const char* runmax_isa_name(uint64_t isa) noexcept { return isa_name(isa); }
