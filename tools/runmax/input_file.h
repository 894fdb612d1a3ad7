// A file that is read by position: opened once, checked to be a regular file, never mapped (a file
// that shrinks under a mapping kills the process; a short read is an error message).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runmax/runmax.h"

namespace runmax::cli {

class InputFile {
 public:
  // `label` names the file in messages: "IN", "--q".
  InputFile(std::string label, const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& label() const { return label_; }
  uint64_t size() const { return size_; }
  dev_t device() const { return device_; }
  ino_t inode() const { return inode_; }

  void read(uint64_t offset, void* to, size_t bytes) const;

 private:
  std::string label_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// A tensor that lies in a file. Its bytes are inside the file: both readers have checked that.
struct FileTensor {
  std::string name;
  runmax_dtype dtype = RUNMAX_DTYPE_NONE;
  std::vector<int64_t> shape;
  bool fortran_order = false;  // first index fastest; otherwise the last
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::shared_ptr<const InputFile> file;
};

// shape[0] * shape[1] * ... * element_bytes; false if that exceeds 2^63 - 1.
bool tensor_bytes(const std::vector<int64_t>& shape, uint64_t element_bytes, uint64_t& bytes);

uint64_t dtype_bytes(runmax_dtype dtype);     // 0 for codes that no file holds
const char* dtype_label(runmax_dtype dtype);  // "F32", as in safetensors

}  // namespace runmax::cli
