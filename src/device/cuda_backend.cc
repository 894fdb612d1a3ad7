#include "device/cuda_backend.h"

#include <dlfcn.h>

#include "build_hash.h"

namespace runmax {
namespace {

constexpr const char* kLibrary = "librunmax_cuda.so";

// The folder of the object that holds this code, "" if the loader does not know it.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&cuda_backend), &info) == 0 || info.dli_fname == nullptr)
    return "";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

struct Loaded {
  const CudaBackend* backend = nullptr;
  std::string reason;
};

// The library stays loaded for good: devices and plans point into it.
Loaded load() {
  void* library = nullptr;
  std::string error;
  for (const std::string& path : {own_folder() + kLibrary, std::string(kLibrary)}) {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    if (error.empty()) error = dlerror();
  }
  if (library == nullptr) return {nullptr, "no CUDA backend: " + error};
  const auto entry = reinterpret_cast<CudaBackendEntry>(dlsym(library, kCudaBackendEntry));
  if (entry == nullptr) return {nullptr, std::string(kLibrary) + " has no entry point of runmax"};
  const CudaBackend* backend = entry(RUNMAX_BUILD_HASH);
  if (backend == nullptr) {
    return {nullptr, std::string(kLibrary) + " belongs to another build of runmax"};
  }
  return {backend, ""};
}

}  // namespace

const CudaBackend* cuda_backend(std::string& reason) {
  static const Loaded loaded = load();
  reason = loaded.reason;
  return loaded.backend;
}

}  // namespace runmax
