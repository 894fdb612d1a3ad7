// Cases as files: what the command reads, written byte by byte without its own writers.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "testing/case.h"

namespace runmax::testing {

struct StoredTensor {
  std::string name;
  std::string dtype;  // as safetensors says it: "F32"
  std::vector<int64_t> shape;
  std::string bytes;
};

StoredTensor f32_tensor(const std::string& name, const std::vector<int64_t>& shape,
                        const std::vector<float>& values);
StoredTensor i32_tensor(const std::string& name, const std::vector<int64_t>& shape,
                        const std::vector<int32_t>& values);
// Small numbers that differ.
StoredTensor f32_filled(const std::string& name, const std::vector<int64_t>& shape);

std::string safetensors_bytes(const std::vector<StoredTensor>& tensors);
// `header` as it is, with its length in front.
std::string safetensors_bytes(const std::string& header, const std::string& data);
std::string npy_bytes(const StoredTensor& tensor, bool fortran_order = false);

// The inputs of a case. swap_heads: q, k, v as [batch, len, heads, dim].
std::vector<StoredTensor> stored_inputs(const Case& c, bool swap_heads = false);
// What the case's words are as flags of the command.
std::vector<std::string> flags_of(const ProblemSpec& spec);

// A tensor of the file's bytes that the command wrote, read by a few lines of our own.
StoredTensor read_safetensor(const std::string& bytes, const std::string& name);
StoredTensor read_npy_tensor(const std::string& bytes);

}  // namespace runmax::testing
