// The safetensors reader against headers that lie, and the writer against the reader.
#include "safetensors.h"

#include <gtest/gtest.h>

#include "error.h"

namespace runmax::cli {
namespace {

std::string entry(const std::string& name, const std::string& rest) {
  return "\"" + name + "\":{" + rest + "}";
}
std::string f32(const std::string& name, const std::string& shape, const std::string& offsets) {
  return entry(name,
               R"("dtype":"F32","shape":[)" + shape + R"(],"data_offsets":[)" + offsets + "]");
}

// The message, or "" if the header is accepted.
std::string refusal(const std::string& header, uint64_t data_bytes) {
  try {
    parse_safetensors_header("IN", header, data_bytes);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), kExitBadInput);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
}

TEST(Safetensors, ReadsTensorsInFileOrder) {
  const std::string header = "{\"__metadata__\":{\"format\":\"pt\"}," + f32("b", "2,3", "4,28") +
                             "," + f32("a", "1", "0,4") + "}  ";
  const std::vector<FileTensor> tensors = parse_safetensors_header("IN", header, 28);
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(tensors[1].offset, 4u);
  EXPECT_EQ(tensors[1].bytes, 24u);
  EXPECT_EQ(tensors[1].dtype, RUNMAX_F32);
}

TEST(Safetensors, ReadsEmptyTensorsAndScalars) {
  EXPECT_EQ(refusal("{" + f32("a", "", "0,4") + "}", 4), "");
  EXPECT_EQ(refusal("{" + f32("a", "0", "0,0") + "," + f32("b", "3,0", "0,0") + "}", 0), "");
  EXPECT_EQ(refusal("{" + f32("a", "0,9223372036854775807,9223372036854775807", "0,0") + "}", 0),
            "");
  EXPECT_EQ(refusal("{}", 0), "");
}

TEST(Safetensors, KnowsItsTypes) {
  const auto dtype_of = [](const std::string& name, int bytes) {
    const std::string size = std::to_string(bytes);
    return parse_safetensors_header(
               "IN",
               "{" +
                   entry("a", R"("dtype":")" + name + R"(","shape":[1],"data_offsets":[0,)" + size +
                                  "]") +
                   "}",
               static_cast<uint64_t>(bytes))
        .at(0)
        .dtype;
  };
  EXPECT_EQ(dtype_of("F64", 8), RUNMAX_F64);
  EXPECT_EQ(dtype_of("BF16", 2), RUNMAX_BF16);
  EXPECT_EQ(dtype_of("F16", 2), RUNMAX_F16);
  EXPECT_EQ(dtype_of("I32", 4), RUNMAX_I32);
  EXPECT_EQ(dtype_of("BOOL", 1), RUNMAX_BOOL);
  EXPECT_EQ(dtype_of("U8", 1), RUNMAX_BOOL);
  EXPECT_EQ(dtype_of("I64", 8), RUNMAX_DTYPE_NONE);
}

struct Refused {
  const char* what;
  std::string header;
  uint64_t data_bytes;
  const char* begins;  // of the message
};

const std::vector<Refused>& refused() {
  static const std::vector<Refused> all = {
      {"empty", "", 0, "IN.header: does not begin"},
      {"blank first", " {}", 0, "IN.header: does not begin"},
      {"an array", "[]", 0, "IN.header: does not begin"},
      {"truncated", "{" + f32("a", "1", "0,4"), 4, "IN.header: is broken at byte"},
      {"two objects", "{}{}", 0, "IN.header: is broken at byte 3"},
      {"nan", "{" + f32("a", "NaN", "0,4") + "}", 4, "IN.header: is broken at byte"},
      {"not utf-8", "{" + f32("\xff", "1", "0,4") + "}", 4, "IN.header: is broken at byte"},
      {"overlong utf-8", "{" + f32("\xc0\x80", "1", "0,4") + "}", 4, "IN.header: is broken"},
      {"nul", std::string("{\0}", 3), 0, "IN.header: is broken"},
      {"deep arrays", "{\"a\":" + std::string(100000, '['), 0, "IN.a: is an array"},
      {"deep shape", R"({"a":{"shape":[[[[1]]]]}})", 0, "IN.a.shape: is an array"},
      {"deep objects", R"({"a":{"shape":{"x":1}}})", 0, "IN.a.shape: is an object"},
      {"duplicate name", "{" + f32("a", "1", "0,4") + "," + f32("a", "1", "4,8") + "}", 8,
       "IN.a: appears twice"},
      {"duplicate by escape", "{" + f32("a", "1", "0,4") + "," + f32("\\u0061", "1", "4,8") + "}",
       8, "IN.a: appears twice"},
      {"duplicate key", "{" + entry("a", R"("dtype":"F32","dtype":"F32")") + "}", 0,
       "IN.a.dtype: appears twice"},
      {"unknown key", "{" + entry("a", R"("colour":"red")") + "}", 0, "IN.a.colour: is an unknown"},
      {"no dtype", "{" + entry("a", R"("shape":[1],"data_offsets":[0,4])") + "}", 4,
       "IN.a: has no dtype"},
      {"no shape", "{" + entry("a", R"("dtype":"F32","data_offsets":[0,4])") + "}", 4,
       "IN.a: has no shape"},
      {"no offsets", "{" + entry("a", R"("dtype":"F32","shape":[1])") + "}", 4,
       "IN.a: has no data_offsets"},
      {"unknown type", "{" + entry("a", R"("dtype":"F128")") + "}", 0, "IN.a.dtype: is F128"},
      {"numeric type", "{" + entry("a", R"("dtype":3)") + "}", 0, "IN.a.dtype: is a number"},
      {"null", R"({"a":null})", 0, "IN.a: is null"},
      {"number", R"({"a":1})", 0, "IN.a: is a number"},
      {"metadata of numbers", R"({"__metadata__":{"a":1}})", 0, "IN.__metadata__.a: is a number"},
      {"text shape", R"({"a":{"shape":"1"}})", 0, "IN.a.shape: is a string"},
      {"negative", "{" + f32("a", "-1", "0,4") + "}", 4, "IN.a.shape: holds -1"},
      {"float", "{" + f32("a", "1.0", "0,4") + "}", 4, "IN.a.shape: holds 1.0"},
      {"2^63", "{" + f32("a", "9223372036854775808", "0,0") + "}", 0, "IN.a.shape: holds 92233"},
      {"2^64", "{" + f32("a", "18446744073709551616", "0,0") + "}", 0, "IN.a.shape: holds 18446"},
      {"overflowing product", "{" + f32("a", "4294967296,4294967296", "0,0") + "}", 0,
       "IN.a.data_offsets: covers 0 bytes"},
      {"overflowing bytes", "{" + f32("a", "9223372036854775807", "0,4") + "}", 4,
       "IN.a.data_offsets: covers 4 bytes"},
      {"one offset", "{" + f32("a", "1", "0") + "}", 4, "IN.a.data_offsets: has 1 elements"},
      {"falling offsets", "{" + f32("a", "1", "4,0") + "}", 4, "IN.a.data_offsets: is [4, 0]"},
      {"wrong size", "{" + f32("a", "2", "0,4") + "}", 4, "IN.a.data_offsets: covers 4 bytes"},
      {"beyond the file", "{" + f32("a", "2", "0,8") + "}", 7, "IN.a.data_offsets: ends at 8"},
      {"first hole", "{" + f32("a", "1", "4,8") + "}", 8, "IN.a.data_offsets: begins at 4"},
      {"hole", "{" + f32("a", "1", "0,4") + "," + f32("b", "1", "8,12") + "}", 12,
       "IN.b.data_offsets: begins at 8"},
      {"overlap", "{" + f32("a", "2", "0,8") + "," + f32("b", "2", "4,12") + "}", 12,
       "IN.b.data_offsets: begins at 4"},
      {"same bytes", "{" + f32("a", "1", "0,4") + "," + f32("b", "1", "0,4") + "}", 4,
       "IN.b.data_offsets: begins at 0"},
      {"tail", "{" + f32("a", "1", "0,4") + "}", 5, "IN: holds 5 bytes"},
      {"line break in a name", "{" + f32("a\\nb", "1.5", "0,4") + "}", 4, "IN.a\\x0ab.shape"}};
  return all;
}

TEST(Safetensors, RefusesWhatLies) {
  for (const Refused& each : refused()) {
    const std::string message = refusal(each.header, each.data_bytes);
    EXPECT_EQ(message.rfind(each.begins, 0), 0u) << each.what << ": '" << message << "'";
  }
}

// Cutting a good header anywhere never reads as a good file.
TEST(Safetensors, RefusesEveryTruncation) {
  const std::string header = "{" + f32("a", "1", "0,4") + "," + f32("b", "1", "4,8") + "}";
  ASSERT_EQ(refusal(header, 8), "");
  for (size_t size = 0; size < header.size(); ++size) {
    EXPECT_NE(refusal(header.substr(0, size), 8), "") << size;
  }
}

TEST(Safetensors, ReadsBackWhatItWrites) {
  std::vector<FileTensor> tensors(3);
  tensors[0].name = "a \"quoted\" name";
  tensors[0].dtype = RUNMAX_F64;
  tensors[0].shape = {2, 1};
  tensors[1].name = "empty";
  tensors[1].dtype = RUNMAX_BF16;
  tensors[1].shape = {0, 5};
  tensors[2].name = "scalar";
  tensors[2].dtype = RUNMAX_BOOL;
  const std::string header = safetensors_header(tensors);
  EXPECT_EQ(header.size() % 8, 0u);
  const std::vector<FileTensor> again = parse_safetensors_header("OUT", header.substr(8), 17);
  ASSERT_EQ(again.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(again[i].name, tensors[i].name);
    EXPECT_EQ(again[i].dtype, tensors[i].dtype);
    EXPECT_EQ(again[i].shape, tensors[i].shape);
  }
}

TEST(Printable, KeepsOneLine) {
  EXPECT_EQ(printable("plain, äöü €"), "plain, äöü €");
  EXPECT_EQ(printable("a\nb\tc\x7f"), "a\\x0ab\\x09c\\x7f");
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable("\u2028\u0085"), "\\xe2\\x80\\xa8\\xc2\\x85");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_LT(printable(std::string(100000, 'a')).size(), 1000u);
}

}  // namespace
}  // namespace runmax::cli
