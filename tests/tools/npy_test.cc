// The .npy reader against headers that lie, and the writer against the reader.
#include "npy.h"

#include <gtest/gtest.h>

#include "error.h"

namespace runmax::cli {
namespace {

std::string header(const std::string& descr, const std::string& fortran, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }\n";
}

std::string refusal(const std::string& text, uint64_t data_bytes) {
  try {
    parse_npy_header("--q", text, data_bytes);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), kExitBadInput);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
}

TEST(Npy, ReadsHeaders) {
  const FileTensor tensor = parse_npy_header("--q", header("<f4", "True", "(2, 3)"), 24);
  EXPECT_EQ(tensor.dtype, RUNMAX_F32);
  EXPECT_EQ(tensor.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(tensor.fortran_order);
  EXPECT_EQ(parse_npy_header("--q", header("<f2", "False", "(4,)"), 8).dtype, RUNMAX_F16);
  EXPECT_EQ(parse_npy_header("--q", header("<f8", "False", "()"), 8).shape.size(), 0u);
  EXPECT_EQ(parse_npy_header("--q", header("<i4", "False", "(0, 7)"), 0).dtype, RUNMAX_I32);
  EXPECT_EQ(parse_npy_header("--q", header("|b1", "False", "(3,)"), 3).dtype, RUNMAX_BOOL);
  EXPECT_EQ(parse_npy_header("--q", header("|u1", "False", "(3,)"), 3).dtype, RUNMAX_BOOL);
  // Any order of keys, any blanks, either quote.
  EXPECT_EQ(refusal("{\"shape\":(1,),'fortran_order' :False , 'descr':\"<f4\"}", 4), "");
}

TEST(Npy, RefusesWhatLies) {
  struct Refused {
    const char* what;
    std::string text;
    uint64_t data_bytes;
    const char* begins;
  };
  const Refused all[] = {
      {"empty", "", 0, "--q.header: is broken at byte 0"},
      {"not a dictionary", "('descr',)", 0, "--q.header: is broken at byte 0"},
      {"big endian", header(">f4", "False", "(1,)"), 4, "--q.descr: is '>f4', big-endian"},
      {"int64", header("<i8", "False", "(1,)"), 8, "--q.descr: is '<i8'"},
      {"native order", header("=f4", "False", "(1,)"), 4, "--q.descr: is '=f4'"},
      {"records", "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", 4,
       "--q.header: describes records"},
      {"lower case", header("<f4", "false", "(1,)"), 4, "--q.header: is broken at byte"},
      {"number as a flag", header("<f4", "0", "(1,)"), 4, "--q.header: is broken at byte"},
      {"list shape", header("<f4", "False", "[1]"), 4, "--q.header: is broken at byte"},
      {"number shape", header("<f4", "False", "(1)"), 4, "--q.header: is broken at byte"},
      {"negative", header("<f4", "False", "(-1,)"), 4, "--q.header: is broken at byte"},
      {"float", header("<f4", "False", "(1.0,)"), 4, "--q.header: is broken at byte"},
      {"2^63", header("<f4", "False", "(9223372036854775808,)"), 0, "--q.header: is broken"},
      {"overflow", header("<f4", "False", "(4294967296, 4294967296)"), 0, "--q: holds 0 bytes"},
      {"too many dimensions", header("<f4", "False", "(" + std::string(65 * 2, '1') + ",)"), 4,
       "--q.header: is broken at byte"},
      {"short", header("<f4", "False", "(2,)"), 7, "--q: holds 7 bytes"},
      {"long", header("<f4", "False", "(2,)"), 9, "--q: holds 9 bytes"},
      {"no key", "{'descr': '<f4', 'shape': (1,)}", 4, "--q.header: lacks a key"},
      {"duplicate", "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", 4,
       "--q.header: has the key 'descr' twice"},
      {"unknown", "{'colour': 3}", 4, "--q.header: has the key 'colour'"},
      {"tail", header("<f4", "False", "(1,)") + "x", 4, "--q.header: is broken at byte"},
      {"nul", std::string("{\0", 2), 4, "--q.header: is broken at byte 1"},
      {"open string", "{'descr", 4, "--q.header: is broken at byte 1"},
      {"line break", header("<f4\\n", "False", "(1,)"), 4, "--q.header: is broken at byte"},
      {"raw line break", header("<f\n4", "False", "(1,)"), 4, "--q.descr: is '<f\\x0a4'"}};
  for (const Refused& each : all) {
    const std::string message = refusal(each.text, each.data_bytes);
    EXPECT_EQ(message.rfind(each.begins, 0), 0u) << each.what << ": '" << message << "'";
  }
}

TEST(Npy, RefusesTooManyDimensions) {
  std::string shape = "(";
  for (int i = 0; i < 65; ++i) shape += "1, ";
  EXPECT_NE(refusal(header("<f4", "False", shape + ")"), 4).find("dimensions"), std::string::npos);
}

TEST(Npy, RefusesEveryTruncation) {
  const std::string text = header("<f4", "False", "(1,)");
  const size_t end = text.rfind('}');
  for (size_t size = 0; size <= end; ++size)
    EXPECT_NE(refusal(text.substr(0, size), 4), "") << size;
}

TEST(Npy, ReadsBackWhatItWrites) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{}, {5}, {2, 3, 4}, {0, 7}, std::vector<int64_t>(20, 1)}) {
    uint64_t bytes = 0;
    ASSERT_TRUE(tensor_bytes(shape, 4, bytes));
    const std::string written = npy_header(RUNMAX_F32, shape);
    EXPECT_EQ(written.size() % 64, 0u);
    EXPECT_EQ(written.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
    const FileTensor again = parse_npy_header("--out", written.substr(10), bytes);
    EXPECT_EQ(again.shape, shape);
    EXPECT_FALSE(again.fortran_order);
  }
  EXPECT_THROW(npy_header(RUNMAX_BF16, {1}), Error);
}

}  // namespace
}  // namespace runmax::cli
