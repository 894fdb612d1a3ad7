#include "safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "error.h"

namespace runmax::cli {
namespace {

using nlohmann::json;

struct FileType {
  const char* name;
  uint64_t bytes;
  runmax_dtype dtype;
};
// U8 masks are common; like BOOL, any non-zero byte is true.
constexpr FileType kFileTypes[] = {
    {"F64", 8, RUNMAX_F64},           {"F32", 4, RUNMAX_F32},
    {"BF16", 2, RUNMAX_BF16},         {"F16", 2, RUNMAX_F16},
    {"I32", 4, RUNMAX_I32},           {"BOOL", 1, RUNMAX_BOOL},
    {"U8", 1, RUNMAX_BOOL},           {"I8", 1, RUNMAX_DTYPE_NONE},
    {"I16", 2, RUNMAX_DTYPE_NONE},    {"U16", 2, RUNMAX_DTYPE_NONE},
    {"U32", 4, RUNMAX_DTYPE_NONE},    {"I64", 8, RUNMAX_DTYPE_NONE},
    {"U64", 8, RUNMAX_DTYPE_NONE},    {"F8_E4M3", 1, RUNMAX_DTYPE_NONE},
    {"F8_E5M2", 1, RUNMAX_DTYPE_NONE}};

// Receives the header's JSON token by token, so that nesting costs nothing, a repeated key is seen
// (a document tree would keep the last one silently) and the first error stops the parse.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  HeaderReader(std::string_view label, std::vector<FileTensor>& tensors)
      : label_(label), tensors_(tensors) {}

  bool start_object(std::size_t) override {
    if (depth_ == 0) return ++depth_, true;
    if (depth_ == 1) {
      ++depth_;
      keys_.clear();
      type_ = nullptr;
      has_shape_ = has_offsets_ = false;
      begin_ = end_ = 0;
      shape_.clear();
      return true;
    }
    fail(where(), "is an object, must be {}", wanted());
  }

  bool key(std::string& key) override {
    if (depth_ == 1) {
      if (!names_.insert(key).second) fail(field(key), "appears twice, must appear once");
      name_ = key;
      in_metadata_ = key == "__metadata__";
    } else {
      key_ = key;
      if (!keys_.insert(key).second) fail(where(), "appears twice, must appear once");
      if (!in_metadata_ && key != "dtype" && key != "shape" && key != "data_offsets") {
        fail(where(), "is an unknown key, must be dtype, shape or data_offsets");
      }
    }
    return true;
  }

  bool end_object() override {
    --depth_;
    if (depth_ == 1 && !in_metadata_) finish_tensor();
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || key_ == "dtype" || in_array_) {
      fail(where(), "is an array, must be {}", wanted());
    }
    in_array_ = true;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    in_array_ = false;
    if (key_ == "shape") {
      has_shape_ = true;
      shape_.assign(numbers_.begin(), numbers_.end());
    } else {
      if (numbers_.size() != 2) {
        fail(where(), "has {} elements, must be [begin, end]", numbers_.size());
      }
      has_offsets_ = true;
      begin_ = numbers_[0];
      end_ = numbers_[1];
    }
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) fail(where(), "is a number, must be {}", wanted());
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      fail(where(), "holds {}, must be at most 2^63 - 1", value);
    }
    numbers_.push_back(value);
    return true;
  }
  bool number_integer(number_integer_t value) override {
    fail(where(), "holds {}, must be {}", value, wanted());
  }
  bool number_float(number_float_t, const std::string& text) override {
    fail(where(), "holds {}, must be {}", printable(text), wanted());
  }
  bool string(std::string& value) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ != 2 || key_ != "dtype") fail(where(), "is a string, must be {}", wanted());
    for (const FileType& type : kFileTypes) {
      if (value == type.name) return type_ = &type, true;
    }
    fail(where(), "is {}, must be a type of the format (F32, BF16, ...)", printable(value));
  }
  bool null() override { fail(where(), "is null, must be {}", wanted()); }
  bool boolean(bool) override { fail(where(), "is a boolean, must be {}", wanted()); }
  bool binary(json::binary_t&) override { fail(where(), "is binary, must be {}", wanted()); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    fail(fmt::format("{}.header", label_), "is broken at byte {}, must be JSON in UTF-8", position);
  }

 private:
  std::string field(std::string_view name) const {
    return fmt::format("{}.{}", label_, printable(name));
  }
  std::string where() const {
    if (depth_ == 0) return fmt::format("{}.header", label_);
    if (depth_ == 1) return field(name_);
    return fmt::format("{}.{}", field(name_), printable(key_));
  }
  const char* wanted() const {
    if (depth_ == 0) return "an object";
    if (depth_ == 1) return "an object with dtype, shape and data_offsets";
    if (in_metadata_ || key_ == "dtype") return "a string";
    return in_array_ ? "integers from 0 on" : "an array of integers";
  }

  void finish_tensor() {
    const std::string field_name = field(name_);
    if (type_ == nullptr) fail(field_name, "has no dtype, must have dtype, shape, data_offsets");
    if (!has_shape_) fail(field_name, "has no shape, must have dtype, shape, data_offsets");
    if (!has_offsets_)
      fail(field_name, "has no data_offsets, must have dtype, shape, data_offsets");
    if (begin_ > end_) {
      fail(field_name + ".data_offsets", "is [{}, {}], must not fall", begin_, end_);
    }
    uint64_t bytes = 0;
    if (!tensor_bytes(shape_, type_->bytes, bytes) || bytes != end_ - begin_) {
      fail(field_name + ".data_offsets", "covers {} bytes, must cover exactly shape {} of type {}",
           end_ - begin_, printable(shape_text(shape_)), type_->name);
    }
    FileTensor tensor;
    tensor.name = name_;
    tensor.dtype = type_->dtype;
    tensor.shape = std::move(shape_);
    tensor.offset = begin_;
    tensor.bytes = bytes;
    tensors_.push_back(std::move(tensor));
  }

  std::string label_;
  std::vector<FileTensor>& tensors_;
  std::set<std::string> names_;
  std::set<std::string> keys_;
  int depth_ = 0;
  bool in_metadata_ = false;
  bool in_array_ = false;
  std::string name_;
  std::string key_;
  const FileType* type_ = nullptr;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
  std::vector<int64_t> shape_;
  std::vector<uint64_t> numbers_;
};

}  // namespace

std::vector<FileTensor> parse_safetensors_header(std::string_view label, std::string_view header,
                                                 uint64_t data_bytes) {
  if (header.empty() || header[0] != '{') {
    fail(fmt::format("{}.header", label), "does not begin with {{, must be a JSON object");
  }
  std::vector<FileTensor> tensors;
  HeaderReader reader(label, tensors);
  json::sax_parse(header.begin(), header.end(), &reader);

  std::sort(tensors.begin(), tensors.end(), [](const FileTensor& a, const FileTensor& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  uint64_t end = 0;
  for (const FileTensor& tensor : tensors) {
    const std::string field = fmt::format("{}.{}.data_offsets", label, printable(tensor.name));
    if (tensor.offset != end) {
      fail(field, "begins at {}, must begin at {}: tensors neither overlap nor leave holes",
           tensor.offset, end);
    }
    if (tensor.bytes > data_bytes - end) {
      fail(field, "ends at {}, must end within the {} bytes of data that the file holds",
           tensor.offset + tensor.bytes, data_bytes);
    }
    end += tensor.bytes;
  }
  if (end != data_bytes) {
    fail(label, "holds {} bytes of data, must hold the {} that its header describes", data_bytes,
         end);
  }
  return tensors;
}

std::vector<FileTensor> read_safetensors(const std::shared_ptr<const InputFile>& file) {
  unsigned char prefix[8];
  if (file->size() < sizeof prefix) {
    fail(file->label(), "has {} bytes, must be a safetensors file (8 bytes and more)",
         file->size());
  }
  file->read(0, prefix, sizeof prefix);
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | prefix[i];
  const uint64_t most = std::min(kMaxSafetensorsHeader, file->size() - sizeof prefix);
  if (header_bytes > most) {
    fail(file->label() + ".header", "has {} bytes, must have at most {} ({})", header_bytes, most,
         most == kMaxSafetensorsHeader ? "the format's limit" : "what the file holds");
  }
  std::string header(header_bytes, '\0');
  file->read(sizeof prefix, header.data(), header.size());
  const uint64_t data = sizeof prefix + header_bytes;
  std::vector<FileTensor> tensors =
      parse_safetensors_header(file->label(), header, file->size() - data);
  for (FileTensor& tensor : tensors) {
    tensor.offset += data;
    tensor.file = file;
  }
  return tensors;
}

std::string safetensors_header(const std::vector<FileTensor>& tensors) {
  std::string text = "{";
  uint64_t end = 0;
  for (const FileTensor& tensor : tensors) {
    uint64_t bytes = 0;
    if (!tensor_bytes(tensor.shape, dtype_bytes(tensor.dtype), bytes)) {
      fail(tensor.name, "is too large for a file");
    }
    text += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        end == 0 && text.size() == 1 ? "" : ",", json(tensor.name).dump(),
                        dtype_label(tensor.dtype), fmt::join(tensor.shape, ","), end, end + bytes);
    end += bytes;
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data are aligned
  std::string result;
  for (int i = 0; i < 8; ++i) result += static_cast<char>(text.size() >> (8 * i) & 0xFF);
  return result + text;
}

}  // namespace runmax::cli
