// Any bytes read as a safetensors file: an Error of one line, or tensors that lie inside the file.
#include "safetensors.h"

#include <cstring>
#include <memory>
#include <vector>

#include "bytes_file.h"
#include "error.h"

using runmax::cli::FileTensor;
using runmax::cli::InputFile;
using runmax::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const runmax::fuzz::BytesFile bytes(data, size);
  try {
    const auto file = std::make_shared<const InputFile>("IN", bytes.path());
    const std::vector<FileTensor> tensors = runmax::cli::read_safetensors(file);
    std::vector<FileTensor> known;
    uint64_t total = 0;
    for (const FileTensor& tensor : tensors) {
      require(tensor.offset <= size && tensor.bytes <= size - tensor.offset);
      std::vector<char> content(tensor.bytes);
      file->read(tensor.offset, content.data(), content.size());
      if (tensor.dtype == RUNMAX_DTYPE_NONE) continue;
      known.push_back(tensor);
      total += tensor.bytes;
    }
    // What we write of it, we read back.
    const std::string header = runmax::cli::safetensors_header(known);
    const std::vector<FileTensor> again =
        runmax::cli::parse_safetensors_header("OUT", header.substr(8), total);
    require(again.size() == known.size());
  } catch (const runmax::cli::Error& error) {
    require(error.exit_code() == runmax::cli::kExitBadInput);
    require(std::strlen(error.what()) > 0 && std::strchr(error.what(), '\n') == nullptr);
  }
  return 0;
}
