// With batch_invariant the bits of a row depend on its own query, the keys and values that it sees,
// heads and flags alone: a row inside a batch of 17 sequences, packed or dense, has the bits that
// it has alone, whatever the storage around it. (tests/sweep has the same for plain views of dense
// batches, and for every kernel of the table.)
#include <gtest/gtest.h>

#include <bit>
#include <optional>
#include <string>
#include <string_view>

#include "testing/case.h"
#include "testing/element.h"
#include "testing/run.h"

namespace runmax::testing {
namespace {

// How a chunk of rows is put to the library once more.
struct Form {
  bool packed;
  int64_t spare_keys;    // storage past the sequence's keys
  int64_t spare_bounds;  // packed: added to max_q_len and max_kv_len
};
constexpr Form kForms[] = {{false, 0, 0}, {false, 37, 0}, {true, 0, 900}, {true, 70, 1}};

// Rows [begin, end) of sequence b of a larger problem, alone.
class Chunk {
 public:
  Chunk(const Case& whole, int64_t b, int64_t begin, int64_t end, const Form& form)
      : whole_(whole),
        b_(b),
        begin_(begin),
        rows_(end - begin),
        keys_(whole.kv_used(b)),
        q_start_(whole.q_start(b)),
        kv_start_(whole.kv_start(b)),
        alone_(spec(form)) {
    for (const Operand& operand : operands()) {
      const std::string name = operand.name;
      if (!alone_.has(name) || operand.is_output(alone_.problem()) || whole_offset_free(name)) {
        continue;
      }
      alone_.fill(name, [&](const int64_t* index) {
        const std::optional<double> value = of_whole(name, index);
        return value ? *value : at(alone_, name, index);
      });
    }
  }

  Outcome execute() { return testing::execute(alone_); }

  // Does every row of the chunk have the bits of the larger problem?
  bool same_bits() const {
    bool same = true;
    for (const char* name : {"out", "lse"}) {
      const runmax_tensor& t = alone_.buffer(name).tensor;
      for_each_element(t, [&](const int64_t* index, int64_t) {
        const std::optional<double> wanted = of_whole(name, index);
        if (!wanted) return;
        same &=
            std::bit_cast<uint64_t>(*wanted) == std::bit_cast<uint64_t>(at(alone_, name, index));
      });
    }
    return same;
  }

 private:
  ProblemSpec spec(const Form& form) const {
    ProblemSpec s = whole_.spec();
    const int64_t kv_storage = keys_ + form.spare_keys;
    s.batch = 1;
    s.q_len = rows_;
    s.kv_len = kv_storage;
    s.seqused_q = {};
    s.seqused_kv = {true, {keys_}};
    const int64_t off = whole_.has("diagonal_offset")      ? int64_at("diagonal_offset")
                        : s.align == RUNMAX_ALIGN_TOP_LEFT ? 0
                                                           : keys_ - whole_.q_used(b_);
    s.diagonal_offset = {true, {off + begin_}};
    if (whole_.has("prefix_len")) s.prefix_len = {true, {int64_at("prefix_len")}};
    s.cu_seqlens_q = s.cu_seqlens_kv = {};
    s.packed = form.packed;
    if (form.packed) {
      s.cu_seqlens_q = {true, {0, rows_}};
      s.cu_seqlens_kv = {true, {0, kv_storage}};
      s.q_len += form.spare_bounds;
      s.kv_len += form.spare_bounds;
    }
    if (s.block_q > 0) {  // chunks cut through blocks: each row brings its own list
      s.block_q = 1;
      const runmax_tensor& lists = whole_.buffer("block_index").tensor;
      s.block_density = static_cast<double>(lists.shape[lists.rank - 1]);  // room enough
    }
    return s;
  }

  int64_t int64_at(const char* name) const { return static_cast<int64_t>(whole_.at(name, {b_})); }

  // Set by spec().
  static bool whole_offset_free(const std::string& name) {
    return name == "seqused_q" || name == "seqused_kv" || name == "diagonal_offset" ||
           name == "prefix_len" || name == "cu_seqlens_q" || name == "cu_seqlens_kv";
  }

  static double at(const Case& c, std::string_view name, const int64_t* index) {
    const Buffer& buffer = c.buffer(name);
    int64_t offset = 0;
    for (int d = 0; d < buffer.tensor.rank; ++d) {
      if (buffer.tensor.shape[d] == 1) continue;  // broadcast, or the only one
      offset += index[d] * buffer.tensor.stride[d];
    }
    return load(buffer.tensor.dtype, buffer.pointer(), offset);
  }

  // The value that an element of the chunk has in the larger problem; none beyond the chunk.
  std::optional<double> of_whole(std::string_view name, const int64_t* i) const {
    const bool small_packed = alone_.spec().packed, large_packed = whole_.spec().packed;
    const bool q_side = name == "q" || name == "out" || name == "lse" || name == "segment_ids_q";
    const int64_t first = q_side ? begin_ : 0;
    const int64_t count = q_side ? rows_ : keys_;
    const int64_t start = q_side ? q_start_ : kv_start_;
    if (name == "q" || name == "k" || name == "v" || name == "out") {
      const int64_t token = small_packed ? i[0] : i[2];
      const int64_t channel = small_packed ? i[2] : i[3];
      if (token >= count) return {};
      if (large_packed) return whole_.at(name, {start + first + token, i[1], channel});
      return whole_.at(name, {b_, i[1], first + token, channel});
    }
    if (name == "lse") {
      const int64_t head = small_packed ? i[0] : i[1];
      const int64_t token = small_packed ? i[1] : i[2];
      if (token >= count) return {};
      if (large_packed) return whole_.at(name, {head, start + first + token});
      return whole_.at(name, {b_, head, first + token});
    }
    if (name == "segment_ids_q" || name == "segment_ids_kv") {
      const int64_t token = small_packed ? i[0] : i[1];
      if (token >= count) return {};
      if (large_packed) return whole_.at(name, {start + first + token});
      return whole_.at(name, {b_, first + token});
    }
    if (name == "bias" || name == "mask") {
      if (i[2] >= rows_ || i[3] >= keys_) return {};
      const int64_t index[] = {b_, i[1], begin_ + i[2], i[3]};
      return at(whole_, name, index);
    }
    if (name == "alibi_slopes") {
      const int64_t by_head[] = {i[0]}, by_batch[] = {b_, i[1]};
      return at(whole_, name, whole_.buffer(name).tensor.rank == 1 ? by_head : by_batch);
    }
    if (name == "sink") return at(whole_, name, i);
    return block(i);
  }

  // Row lists in reverse: a list is a set.
  double block(const int64_t* i) const {
    const bool small_packed = alone_.spec().packed, large_packed = whole_.spec().packed;
    const runmax_tensor& lists = whole_.buffer("block_index").tensor;
    const int64_t head = small_packed ? i[0] : i[1];
    const int64_t row = small_packed ? i[1] : i[2];
    const int64_t from_end = lists.shape[lists.rank - 1] - 1 - (small_packed ? i[2] : i[3]);
    if (from_end < 0) return -1;
    const int64_t block_q = whole_.spec().block_q;
    const int64_t list = (begin_ + row) / block_q;
    if (!large_packed) {
      const int64_t index[] = {b_, head, list, from_end};
      return at(whole_, "block_index", index);
    }
    int64_t before = 0;
    for (int64_t b = 0; b < b_; ++b) {
      before += (whole_.q_start(b + 1) - whole_.q_start(b) + block_q - 1) / block_q;
    }
    const int64_t index[] = {head, before + list, from_end};
    return at(whole_, "block_index", index);
  }

  const Case& whole_;
  int64_t b_, begin_, rows_, keys_, q_start_, kv_start_;
  Case alone_;
};

class BatchInvariance : public ::testing::TestWithParam<const char*> {};

TEST_P(BatchInvariance, rows_alone_have_the_bits_of_the_batch) {
  int64_t chunks = 0;
  for (const std::string& isa : isa_levels()) {
    for (const char* dtype : {"f32", "f64", "bf16", "f16"}) {
      const std::string text =
          std::string(GetParam()) + " batch=17 batch_invariant dtype=" + dtype + " isa=" + isa;
      Case whole(text);
      const Outcome outcome = execute(whole);
      ASSERT_TRUE(outcome.ok()) << outcome.text() << "\n  " << text;
      for (int64_t b = 0; b < 17; b += 8) {
        const int64_t q_len = whole.q_used(b);
        for (const int64_t size : {int64_t{1}, int64_t{7}, int64_t{128}, q_len}) {
          const int64_t step = size >= 128 ? size : std::max<int64_t>(size, q_len / 3);
          for (int64_t begin = 0; begin < q_len; begin += std::max<int64_t>(step, 1)) {
            const Form& form = kForms[chunks % std::ssize(kForms)];
            Chunk chunk(whole, b, begin, std::min(begin + size, q_len), form);
            const Outcome alone = chunk.execute();
            ASSERT_TRUE(alone.ok()) << alone.text() << "\n  " << text;
            ASSERT_TRUE(chunk.same_bits())
                << text << "\n  sequence " << b << ", " << size << " rows from " << begin
                << (form.packed ? ", packed" : ", dense") << " with " << form.spare_keys
                << " spare keys";
            ++chunks;
          }
        }
      }
    }
  }
  EXPECT_GT(chunks, 50);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, BatchInvariance,
    ::testing::Values(
        "q_heads=2 kv_heads=1 q_len=140 kv_len=260 head_dim=12 causal seqused_kv seqused_q "
        "prefix_len sink",
        "packed q_heads=4 kv_heads=2 q_len=140 kv_len=1300 head_dim=8 causal window=1100,0 sink "
        "sink_tokens=3",
        "packed q_heads=2 q_len=130 kv_len=90 head_dim=4 bias=11qk alibi=bh softcap=9 "
        "fill=hostile",
        "packed q_heads=2 q_len=130 kv_len=90 head_dim=8 mask=11qk segments=3 diagonal_offset "
        "window=60,20",
        "q_heads=2 q_len=140 kv_len=1200 head_dim=8 block_size=32,64 block_density=0.3 "
        "block_heads=q causal",
        "packed q_heads=4 kv_heads=2 q_len=140 kv_len=500 head_dim=8 block_size=16,32 "
        "block_heads=kv block_density=0.4 sink"));

}  // namespace
}  // namespace runmax::testing
