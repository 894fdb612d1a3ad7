// Any bytes read as a .npy file: an Error of one line, or a tensor that lies inside the file.
#include "npy.h"

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
    const auto file = std::make_shared<const InputFile>("--q", bytes.path());
    const FileTensor tensor = runmax::cli::read_npy(file, "q");
    require(tensor.offset <= size && tensor.bytes == size - tensor.offset);
    std::vector<char> content(tensor.bytes);
    file->read(tensor.offset, content.data(), content.size());
    // What we write of it, we read back.
    const std::string header = runmax::cli::npy_header(tensor.dtype, tensor.shape);
    require(header.size() % 64 == 0 && header.back() == '\n');
    const FileTensor again =
        runmax::cli::parse_npy_header("--out", header.substr(10), tensor.bytes);
    require(again.shape == tensor.shape && again.dtype == tensor.dtype && !again.fortran_order);
  } catch (const runmax::cli::Error& error) {
    require(error.exit_code() == runmax::cli::kExitBadInput);
    require(std::strlen(error.what()) > 0 && std::strchr(error.what(), '\n') == nullptr);
  }
  return 0;
}
