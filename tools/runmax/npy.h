// NumPy's .npy format, reading and writing. Written here because no Debian package reads it.
//
//   "\x93NUMPY" major minor | u16 (version 1) or u32 (2, 3) little-endian: header bytes | header |
//   data; header: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
//
// Little-endian <f2 <f4 <f8 <i4, and |b1 or |u1 for masks, in C or Fortran order. There is no .npy
// code for bf16. As hostile as safetensors: nothing is allocated by a size that the file lacks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "input_file.h"

namespace runmax::cli {

// The dictionary after the length. `file` and `offset` stay empty.
FileTensor parse_npy_header(std::string_view label, std::string_view header, uint64_t data_bytes);

// `name` is the tensor's; the file says nothing about it.
FileTensor read_npy(const std::shared_ptr<const InputFile>& file, std::string name);

// Everything before the data, which are in C order. F16, F32, F64 and I32 only.
std::string npy_header(runmax_dtype dtype, const std::vector<int64_t>& shape);

}  // namespace runmax::cli
