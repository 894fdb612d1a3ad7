// The safetensors format, reading and writing. Written here because no Debian package reads it.
//
//   u64 little-endian: header bytes | JSON header | data, without holes or overlaps
//   header: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
//
// Headers are hostile until proven otherwise: nothing is allocated or read by a size that the
// file's own size does not cover, names and keys are unique, the JSON is at most three levels deep.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "input_file.h"

namespace runmax::cli {

inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;  // the format's own limit

// The tensors that a header describes, in file order, offsets relative to the data. `file` stays
// empty. Types that runmax has no use for come back as RUNMAX_DTYPE_NONE with their bytes checked.
std::vector<FileTensor> parse_safetensors_header(std::string_view label, std::string_view header,
                                                 uint64_t data_bytes);

std::vector<FileTensor> read_safetensors(const std::shared_ptr<const InputFile>& file);

// Everything before the data. Only name, dtype and shape of the tensors matter; their data follow
// each other in the given order.
std::string safetensors_header(const std::vector<FileTensor>& tensors);

}  // namespace runmax::cli
