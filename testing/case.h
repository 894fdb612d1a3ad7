// A Case: the tensors of one problem, hostile by default.
//
//   block of one operand:  guard | storage (elements, and gaps between them) | guard
//
// Everything that must not be read (guards, stride gaps, rows past a declared length, the ends of
// packed storage) holds poison; outputs hold a pattern that no kernel computes, so that an element
// that was not written shows; pointers are aligned to their element and no better. Data depend on
// the problem string and the logical index only: the same on every machine and in every layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runmax/runmax.h"
#include "testing/problem_string.h"

namespace runmax::testing {

// The operands by name: where each lies in the public structs, and what it is for an op.
struct Operand {
  const char* name;
  runmax_tensor runmax_problem::*tensor;
  void (*bind)(runmax_args& args, void* pointer);
  bool is_output(const runmax_problem& problem) const;
};
const std::vector<Operand>& operands();
// Backward, or the gradients of a merge: out and lse are inputs then.
bool asks_for_gradients(const runmax_problem& problem);

// Where the tensors lie while a kernel runs. Fails by std::bad_alloc or std::runtime_error.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual void* alloc(size_t bytes) = 0;
  virtual void free(void* pointer) = 0;
  virtual void copy_in(void* to, const void* from_host, size_t bytes) = 0;
  virtual void copy_out(void* to_host, const void* from, size_t bytes) = 0;
};

// runmax_device_alloc and friends: any backend, the CPU too.
class DeviceMemory : public Memory {
 public:
  explicit DeviceMemory(runmax_device* device) : device_(device) {}
  void* alloc(size_t bytes) override;
  void free(void* pointer) override;
  void copy_in(void* to, const void* from_host, size_t bytes) override;
  void copy_out(void* to_host, const void* from, size_t bytes) override;

 private:
  runmax_device* device_;
};

struct Buffer {
  runmax_tensor tensor{};
  bool output = false;
  std::shared_ptr<std::byte> block;  // shared by views (v_in_k)
  int64_t block_bytes = 0;
  int64_t storage_begin = 0;  // bytes from the block's start
  int64_t storage_bytes = 0;
  int64_t origin = 0;  // of element [0, ..., 0], likewise

  void* pointer() const { return block.get() + origin; }
};

class Case {
 public:
  // Throws std::bad_alloc or std::length_error for a problem that does not fit in memory.
  explicit Case(const ProblemSpec& spec);
  explicit Case(std::string_view text) : Case(testing::problem(text)) {}
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  const ProblemSpec& spec() const { return spec_; }
  runmax_problem& problem() { return problem_; }
  const runmax_problem& problem() const { return problem_; }
  runmax_args& args() { return args_; }
  const runmax_args& args() const { return args_; }
  // Absent operands have no buffer: has() says.
  bool has(std::string_view name) const { return buffers_.count(std::string(name)) != 0; }
  const Buffer& buffer(std::string_view name) const { return buffers_.at(std::string(name)); }

  using Index = std::initializer_list<int64_t>;
  double at(std::string_view name, Index index) const;
  void set(std::string_view name, Index index, double value);
  // Every element from its logical index, or one value for all.
  void fill(std::string_view name, const std::function<double(const int64_t* index)>& value);
  void fill(std::string_view name, double value);
  // All elements in row-major order.
  std::vector<double> values(std::string_view name) const;

  // What no row sees becomes poison: keys and values, bias entries, and q, d_out and (without a
  // sink) d_lse of empty rows.
  // Call after the last change to lengths, masks and bias. O(pairs).
  void poison_hidden();
  // The visibility rule of docs/numerics.md, from this case's data.
  bool visible(int64_t b, int64_t h, int64_t i, int64_t j) const { return sees(b, h, i, j, true); }

  // Fills outputs with the pattern and remembers all other bytes.
  void seal();
  // "" or what changed since seal() that no kernel may touch: a guard, a gap, an input.
  std::string damage() const;
  bool guards_intact() const { return damage().empty(); }
  // Elements of an output that still hold the pattern.
  int64_t unwritten(std::string_view name) const;
  bool is_unwritten(const Buffer& buffer, int64_t element_offset) const;

  // Under AddressSanitizer: makes touching a guard an error at once, on the instruction. On while
  // a kernel runs; other builds find writes (not reads) afterwards, by damage().
  void forbid_guards(bool forbid) const;

  // Lengths in use of sequence b, and where it starts (packed; 0 when dense).
  int64_t q_used(int64_t b) const;
  int64_t kv_used(int64_t b) const;
  int64_t q_start(int64_t b) const;
  int64_t kv_start(int64_t b) const;

 private:
  void allocate();
  void fill_data();
  void poison_unused();
  void poison_d_lse();
  bool sees(int64_t b, int64_t h, int64_t i, int64_t j, bool with_bias) const;
  int64_t per_sequence(const char* name, int64_t b, int64_t absent) const;
  Buffer& mutable_buffer(std::string_view name) { return buffers_.at(std::string(name)); }

  ProblemSpec spec_;
  runmax_problem problem_{};
  runmax_args args_{};
  std::map<std::string, Buffer> buffers_;
  std::map<std::string, uint64_t> seals_;
};

// Marks bytes so for AddressSanitizer; nothing in other builds.
void forbid_memory(const void* begin, size_t bytes, bool forbid);

// Only the description: shapes, types, options, strides; no data. problem.kernel points into spec.
// Packed totals come from the drawn or given lengths.
runmax_problem make_problem(const ProblemSpec& spec);

// Operands copied to a Memory, same misalignment, for execution there.
class Placement {
 public:
  // A case's whole blocks: guards and gaps too. Operands that were pointed elsewhere by hand are
  // copied as below.
  Placement(Case& source, Memory& memory);
  // What the tensors cover in host memory.
  Placement(const runmax_problem& problem, const runmax_args& args, Memory& memory);
  ~Placement();
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;
  const runmax_args& args() const { return args_; }
  // Copies the blocks of a case there once more, after the case has changed.
  void refresh();
  // Brings everything back: of blocks every byte, otherwise the elements of outputs.
  void fetch();

 private:
  struct Block {
    std::shared_ptr<std::byte> block;
    int64_t bytes;
    std::byte* pointer;
  };
  struct Extent {
    const runmax_tensor* tensor;
    bool output;
    std::byte* host;  // of element [0, ..., 0]
    std::byte* pointer;
  };
  std::byte* allocate(int64_t bytes);
  void place(const Operand& operand, const runmax_problem& problem, std::byte* host);
  void place_random_pointers();

  Memory& memory_;
  runmax_args args_;
  std::vector<void*> allocations_;
  std::vector<Block> blocks_;
  std::vector<Extent> extents_;
};

// Calls visit(index, element offset from [0, ..., 0]) for every element, in row-major order.
template <class Visit>
void for_each_element(const runmax_tensor& tensor, Visit&& visit) {
  int64_t index[RUNMAX_MAX_RANK] = {};
  for (int d = 0; d < tensor.rank; ++d) {
    if (tensor.shape[d] == 0) return;
  }
  const int last = tensor.rank - 1;
  while (true) {
    int64_t offset = 0;
    for (int d = 0; d < last; ++d) offset += index[d] * tensor.stride[d];
    for (index[last] = 0; index[last] < tensor.shape[last]; ++index[last]) {
      visit(static_cast<const int64_t*>(index), offset);
      offset += tensor.stride[last];
    }
    int d = last - 1;
    for (; d >= 0; --d) {
      if (++index[d] < tensor.shape[d]) break;
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

}  // namespace runmax::testing
