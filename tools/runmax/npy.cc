#include "npy.h"

#include <charconv>
#include <cstring>
#include <utility>

#include "error.h"

namespace runmax::cli {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
// What version 1 can express. NumPy needs more only for records, which are refused anyway.
constexpr uint64_t kMaxHeader = 65535;
constexpr size_t kMaxRank = 64;  // NumPy's own

struct ArrayType {
  const char* descr;
  runmax_dtype dtype;
};
constexpr ArrayType kArrayTypes[] = {{"<f4", RUNMAX_F32},  {"<f8", RUNMAX_F64},
                                     {"<f2", RUNMAX_F16},  {"<i4", RUNMAX_I32},
                                     {"|b1", RUNMAX_BOOL}, {"|u1", RUNMAX_BOOL}};
constexpr const char* kAllowedTypes = "'<f2', '<f4', '<f8', '<i4', '|b1' or '|u1'";

// Reads the one kind of Python literal that a header is: a dictionary of a string, a boolean and a
// tuple of integers.
class DictionaryReader {
 public:
  DictionaryReader(std::string_view label, std::string_view text)
      : field_(fmt::format("{}.header", label)), text_(text) {}

  struct Result {
    std::string descr;
    bool fortran_order = false;
    std::vector<int64_t> shape;
  };

  Result read() {
    Result result;
    bool seen[3] = {};
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      const int index = key == "descr" ? 0 : key == "fortran_order" ? 1 : key == "shape" ? 2 : -1;
      if (index < 0) {
        fail(field_, "has the key '{}', must have descr, fortran_order, shape", printable(key));
      }
      if (std::exchange(seen[index], true)) {
        fail(field_, "has the key '{}' twice, must have it once", key);
      }
      if (index == 0) result.descr = descr();
      if (index == 1) result.fortran_order = boolean();
      if (index == 2) result.shape = tuple();
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_blanks();
    if (position_ != text_.size()) broken("nothing more");
    for (const bool present : seen) {
      if (!present) fail(field_, "lacks a key, must have descr, fortran_order and shape");
    }
    return result;
  }

 private:
  [[noreturn]] void broken(const char* wanted) const {
    fail(field_, "is broken at byte {}, must have {} there", position_, wanted);
  }
  void skip_blanks() {
    while (position_ < text_.size() && std::strchr(" \t\r\n", text_[position_]) != nullptr &&
           text_[position_] != '\0') {
      ++position_;
    }
  }
  bool accept(char symbol) {
    skip_blanks();
    if (position_ == text_.size() || text_[position_] != symbol) return false;
    ++position_;
    return true;
  }
  void expect(char symbol) {
    const char wanted[] = {symbol, '\0'};
    if (!accept(symbol)) broken(wanted);
  }
  bool accept_word(std::string_view word) {
    skip_blanks();
    if (text_.substr(position_, word.size()) != word) return false;
    position_ += word.size();
    return true;
  }

  std::string string() {
    skip_blanks();
    const char quote = position_ < text_.size() ? text_[position_] : '\0';
    if (quote != '\'' && quote != '"') broken("a string");
    const size_t begin = position_ + 1;
    const size_t end = text_.find(quote, begin);
    if (end == std::string_view::npos) broken("a string that ends");
    const std::string_view value = text_.substr(begin, end - begin);
    if (value.find('\\') != std::string_view::npos) broken("a string without escapes");
    position_ = end + 1;
    return std::string(value);
  }
  std::string descr() {
    skip_blanks();
    if (position_ < text_.size() && text_[position_] == '[') {
      fail(field_, "describes records, must be a plain array of {}", kAllowedTypes);
    }
    return string();
  }
  bool boolean() {
    if (accept_word("True")) return true;
    if (accept_word("False")) return false;
    broken("True or False");
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> shape;
    expect('(');
    while (!accept(')')) {
      skip_blanks();
      int64_t length = 0;
      const char* end = text_.data() + text_.size();
      const auto parsed = std::from_chars(text_.data() + position_, end, length);
      if (parsed.ec == std::errc::result_out_of_range) broken("an integer up to 2^63 - 1");
      if (parsed.ec != std::errc() || length < 0) broken("an integer from 0 on");
      position_ = static_cast<size_t>(parsed.ptr - text_.data());
      shape.push_back(length);
      if (shape.size() > kMaxRank) fail(field_, "has more than {} dimensions", kMaxRank);
      if (!accept(',')) {
        expect(')');
        // Python: (5) is the number 5, (5,) a tuple.
        if (shape.size() == 1) broken("a tuple, (n,)");
        break;
      }
    }
    return shape;
  }

  std::string field_;
  std::string_view text_;
  size_t position_ = 0;
};

runmax_dtype dtype_from_descr(std::string_view label, const std::string& descr) {
  for (const ArrayType& type : kArrayTypes) {
    if (descr == type.descr) return type.dtype;
  }
  const std::string field = fmt::format("{}.descr", label);
  if (!descr.empty() && descr[0] == '>') {
    fail(field, "is '{}', big-endian, must be little-endian: {}", printable(descr), kAllowedTypes);
  }
  fail(field, "is '{}', must be {}", printable(descr), kAllowedTypes);
}

}  // namespace

FileTensor parse_npy_header(std::string_view label, std::string_view header, uint64_t data_bytes) {
  DictionaryReader::Result read = DictionaryReader(label, header).read();
  FileTensor tensor;
  tensor.dtype = dtype_from_descr(label, read.descr);
  tensor.shape = std::move(read.shape);
  tensor.fortran_order = read.fortran_order;
  if (!tensor_bytes(tensor.shape, dtype_bytes(tensor.dtype), tensor.bytes) ||
      tensor.bytes != data_bytes) {
    fail(label, "holds {} bytes of data, must hold exactly shape {} of '{}'", data_bytes,
         printable(shape_text(tensor.shape)), read.descr);
  }
  return tensor;
}

FileTensor read_npy(const std::shared_ptr<const InputFile>& file, std::string name) {
  const std::string& label = file->label();
  unsigned char prefix[12] = {};
  const uint64_t prefix_bytes = std::min<uint64_t>(sizeof prefix, file->size());
  file->read(0, prefix, prefix_bytes);
  if (prefix_bytes < 10 || std::memcmp(prefix, kMagic.data(), kMagic.size()) != 0) {
    fail(label, "does not begin with \\x93NUMPY, must be a .npy file");
  }
  const int major = prefix[6];
  const int minor = prefix[7];
  if (major < 1 || major > 3 || minor != 0) {
    fail(label, "has format version {}.{}, must be 1.0, 2.0 or 3.0", major, minor);
  }
  const uint64_t length_end = major == 1 ? 10 : 12;
  uint64_t header_bytes = prefix[8] | prefix[9] << 8;
  if (major > 1) {
    header_bytes |= static_cast<uint64_t>(prefix[10]) << 16 | static_cast<uint64_t>(prefix[11])
                                                                  << 24;
  }
  if (header_bytes > kMaxHeader || length_end + header_bytes > file->size()) {
    fail(label + ".header", "has {} bytes, must have at most {} and lie within the file's {}",
         header_bytes, kMaxHeader, file->size());
  }
  std::string header(header_bytes, '\0');
  file->read(length_end, header.data(), header.size());
  const uint64_t data = length_end + header_bytes;
  FileTensor tensor = parse_npy_header(label, header, file->size() - data);
  tensor.name = std::move(name);
  tensor.offset = data;
  tensor.file = file;
  return tensor;
}

std::string npy_header(runmax_dtype dtype, const std::vector<int64_t>& shape) {
  const char* descr = nullptr;
  for (const ArrayType& type : kArrayTypes) {
    if (type.dtype == dtype && descr == nullptr) descr = type.descr;
  }
  if (descr == nullptr) fail("dtype", "is {}, which .npy cannot hold", dtype_label(dtype));
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}",
                                 descr, fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  // The data begin at a multiple of 64; the header ends with a newline.
  constexpr size_t kPrefix = 10;
  text.append((64 - (kPrefix + text.size() + 1) % 64) % 64, ' ');
  text += '\n';
  std::string result(kMagic);
  result += '\x01';
  result += '\0';
  result += static_cast<char>(text.size() & 0xFF);
  result += static_cast<char>(text.size() >> 8);
  return result + text;
}

}  // namespace runmax::cli
