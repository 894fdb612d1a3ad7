#include "input_files.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace runmax::testing {
namespace {

const char* file_dtype(runmax_dtype dtype) {
  switch (dtype) {
    case RUNMAX_F32:
      return "F32";
    case RUNMAX_F64:
      return "F64";
    case RUNMAX_BF16:
      return "BF16";
    case RUNMAX_F16:
      return "F16";
    case RUNMAX_I32:
      return "I32";
    default:
      return "BOOL";
  }
}

int64_t file_dtype_size(const std::string& dtype) {
  return dtype == "F64" ? 8 : dtype == "F32" || dtype == "I32" ? 4 : dtype == "BOOL" ? 1 : 2;
}

std::string joined(const std::vector<int64_t>& values, const char* separator) {
  std::string text;
  for (const int64_t value : values) {
    text += (text.empty() ? std::string() : std::string(separator)) + std::to_string(value);
  }
  return text;
}

// Elements of a row-major tensor in another order of its dimensions.
std::string permuted(const std::string& bytes, const std::vector<int64_t>& shape,
                     const std::vector<size_t>& order, size_t element) {
  std::vector<size_t> stride(shape.size(), element);
  for (size_t d = shape.size(); d-- > 1;) {
    stride[d - 1] = stride[d] * static_cast<size_t>(shape[d]);
  }
  std::string result;
  std::vector<int64_t> index(shape.size(), 0);
  while (result.size() < bytes.size()) {
    size_t offset = 0;
    for (size_t d = 0; d < order.size(); ++d) {
      offset += static_cast<size_t>(index[d]) * stride[order[d]];
    }
    result.append(bytes, offset, element);
    for (size_t d = order.size(); d-- > 0;) {
      if (++index[d] < shape[order[d]]) break;
      index[d] = 0;
    }
  }
  return result;
}

StoredTensor stored(const std::string& name, const Buffer& buffer) {
  StoredTensor tensor{name, file_dtype(buffer.tensor.dtype), {}, ""};
  tensor.shape.assign(buffer.tensor.shape, buffer.tensor.shape + buffer.tensor.rank);
  const auto element = static_cast<size_t>(file_dtype_size(tensor.dtype));
  const char* origin = static_cast<const char*>(buffer.pointer());
  for_each_element(buffer.tensor, [&](const int64_t*, int64_t offset) {
    tensor.bytes.append(origin + offset * static_cast<int64_t>(element), element);
  });
  return tensor;
}

StoredTensor heads_swapped(StoredTensor tensor) {
  tensor.bytes = permuted(tensor.bytes, tensor.shape, {0, 2, 1, 3},
                          static_cast<size_t>(file_dtype_size(tensor.dtype)));
  std::swap(tensor.shape[1], tensor.shape[2]);
  return tensor;
}

}  // namespace

StoredTensor f32_tensor(const std::string& name, const std::vector<int64_t>& shape,
                        const std::vector<float>& values) {
  return {name, "F32", shape,
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4)};
}

StoredTensor i32_tensor(const std::string& name, const std::vector<int64_t>& shape,
                        const std::vector<int32_t>& values) {
  return {name, "I32", shape,
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4)};
}

StoredTensor f32_filled(const std::string& name, const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t length : shape) count *= length;
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.25f * static_cast<float>(i % 7) - 0.5f;
  return f32_tensor(name, shape, values);
}

std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(bytes.data(), &size, 8);
  return bytes + header + data;
}

std::string safetensors_bytes(const std::vector<StoredTensor>& tensors) {
  std::string header = "{\"__metadata__\":{\"made\":\"by a test\"}";
  std::string data;
  for (const StoredTensor& tensor : tensors) {
    header += ",\"" + tensor.name + "\":{\"shape\":[" + joined(tensor.shape, ",") +
              "],\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + tensor.bytes.size()) + "],\"dtype\":\"" + tensor.dtype +
              "\"}";
    data += tensor.bytes;
  }
  return safetensors_bytes(header + "}", data);
}

std::string npy_bytes(const StoredTensor& tensor, bool fortran_order) {
  const std::string& dtype = tensor.dtype;
  const std::string descr = dtype == "F32"   ? "<f4"
                            : dtype == "F64" ? "<f8"
                            : dtype == "F16" ? "<f2"
                            : dtype == "I32" ? "<i4"
                                             : "|b1";
  std::string bytes = tensor.bytes;
  if (fortran_order) {
    std::vector<size_t> order(tensor.shape.size());
    for (size_t d = 0; d < order.size(); ++d) order[d] = order.size() - 1 - d;
    bytes = permuted(bytes, tensor.shape, order, static_cast<size_t>(file_dtype_size(dtype)));
  }
  std::string header =
      "{'descr': '" + descr + "', 'fortran_order': " + (fortran_order ? "True" : "False") +
      ", 'shape': (" + joined(tensor.shape, ", ") + (tensor.shape.size() == 1 ? ",), }" : "), }");
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  std::string prefix("\x93NUMPY\x01\x00", 8);
  prefix += static_cast<char>(header.size() & 0xFF);
  prefix += static_cast<char>(header.size() >> 8);
  return prefix + header + bytes;
}

std::vector<StoredTensor> stored_inputs(const Case& c, bool swap_heads) {
  std::vector<StoredTensor> tensors;
  for (const Operand& operand : operands()) {
    if (!c.has(operand.name) || operand.is_output(c.problem())) continue;
    StoredTensor tensor = stored(operand.name, c.buffer(operand.name));
    const std::string& name = tensor.name;
    if (swap_heads && (name == "q" || name == "k" || name == "v")) {
      tensor = heads_swapped(std::move(tensor));
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<std::string> flags_of(const ProblemSpec& spec) {
  std::vector<std::string> flags;
  const auto add = [&](const std::string& name, const std::string& value) {
    flags.push_back(name);
    flags.push_back(value);
  };
  if (spec.causal) flags.push_back("--causal");
  if (spec.align == RUNMAX_ALIGN_TOP_LEFT) add("--align", "top_left");
  if (spec.window_left >= 0 || spec.window_right >= 0) {
    add("--window", std::to_string(spec.window_left) + "," + std::to_string(spec.window_right));
  }
  if (spec.sink_tokens > 0) add("--sink-tokens", std::to_string(spec.sink_tokens));
  if (spec.block_q > 0) {
    add("--block-size", std::to_string(spec.block_q) + "," + std::to_string(spec.block_kv));
  }
  if (spec.scale_given) flags.push_back("--scale=" + std::to_string(spec.scale));
  if (spec.softcap > 0) add("--softcap", std::to_string(spec.softcap));
  if (spec.dropout > 0) {
    add("--dropout", std::to_string(spec.dropout));
    add("--seed", std::to_string(spec.seed));
    add("--offset", std::to_string(spec.offset));
  }
  if (spec.batch_invariant) flags.push_back("--batch-invariant");
  if (spec.deterministic) flags.push_back("--deterministic");
  if (spec.threads > 0) add("--threads", std::to_string(spec.threads));
  if (!spec.kernel.empty()) add("--kernel", spec.kernel);
  return flags;
}

StoredTensor read_safetensor(const std::string& bytes, const std::string& name) {
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), 8);
  const auto header = nlohmann::json::parse(bytes.substr(8, size));
  const auto& entry = header.at(name);
  const uint64_t begin = entry.at("data_offsets").at(0);
  const uint64_t end = entry.at("data_offsets").at(1);
  return {name, entry.at("dtype"), entry.at("shape"), bytes.substr(8 + size + begin, end - begin)};
}

StoredTensor read_npy_tensor(const std::string& bytes) {
  const size_t header_end = bytes.find('\n') + 1;
  const std::string header = bytes.substr(10, header_end - 10);
  const size_t descr = header.find("'<") + 2;
  const std::string code = header.substr(descr, 2);
  StoredTensor tensor{"", code == "f8" ? "F64" : code == "f4" ? "F32" : "F16", {}, ""};
  if (header.find("'fortran_order': False") == std::string::npos || header_end % 64 != 0) {
    throw std::runtime_error("not the header that was expected: " + header);
  }
  size_t position = header.find('(') + 1;
  while (header[position] != ')') {
    size_t used = 0;
    tensor.shape.push_back(std::stoll(header.substr(position), &used));
    position += used;
    while (header[position] == ',' || header[position] == ' ') ++position;
  }
  tensor.bytes = bytes.substr(header_end);
  return tensor;
}

}  // namespace runmax::testing
