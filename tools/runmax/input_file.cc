#include "input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "error.h"

namespace runmax::cli {
namespace {

const char* file_kind(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "not a regular file";
}

}  // namespace

InputFile::InputFile(std::string label, const std::string& path) : label_(std::move(label)) {
  // O_NONBLOCK: opening a pipe without a writer must not wait.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) {
    fail(label_, "cannot be opened ({}: {}), must be a readable file", printable(path),
         std::strerror(errno));
  }
  struct stat info {};
  const int status = ::fstat(descriptor_, &info);
  if (status != 0 || !S_ISREG(info.st_mode)) {
    ::close(descriptor_);
    fail(label_, "is {} ({}), must be a regular file", file_kind(info.st_mode), printable(path));
  }
  size_ = static_cast<uint64_t>(info.st_size);
  device_ = info.st_dev;
  inode_ = info.st_ino;
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read(uint64_t offset, void* to, size_t bytes) const {
  auto* cursor = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got =
        ::pread(descriptor_, cursor, std::min<size_t>(bytes, 1 << 30), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(label_, "cannot be read ({})", std::strerror(errno));
    if (got == 0)
      fail(label_, "ends at byte {} of {}, must not shrink while it is read", offset, size_);
    cursor += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
}

bool tensor_bytes(const std::vector<int64_t>& shape, uint64_t element_bytes, uint64_t& bytes) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  // A zero anywhere makes the product zero, however large the others are.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) {
    bytes = 0;
    return true;
  }
  bytes = element_bytes;
  for (const int64_t length : shape) {
    if (bytes > kMost / static_cast<uint64_t>(length)) return false;
    bytes *= static_cast<uint64_t>(length);
  }
  return true;
}

uint64_t dtype_bytes(runmax_dtype dtype) {
  switch (dtype) {
    case RUNMAX_F64:
      return 8;
    case RUNMAX_F32:
    case RUNMAX_I32:
      return 4;
    case RUNMAX_BF16:
    case RUNMAX_F16:
      return 2;
    case RUNMAX_BOOL:
      return 1;
    default:
      return 0;
  }
}

const char* dtype_label(runmax_dtype dtype) {
  switch (dtype) {
    case RUNMAX_F64:
      return "F64";
    case RUNMAX_F32:
      return "F32";
    case RUNMAX_I32:
      return "I32";
    case RUNMAX_BF16:
      return "BF16";
    case RUNMAX_F16:
      return "F16";
    case RUNMAX_BOOL:
      return "BOOL";
    default:
      return "?";
  }
}

}  // namespace runmax::cli
