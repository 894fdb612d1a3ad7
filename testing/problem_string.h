// Problem strings: one line that describes an attention problem, its memory and its data, shared by
// tests, bench and the CLI. `key=value` words in the glossary's names, flags bare:
//
//   dtype=bf16 batch=2 q_heads=8 kv_heads=2 q_len=129 kv_len=1025 head_dim=64 causal window=3,0
//
// Every test failure prints one, and `runmax check --problem '...'` replays it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runmax/runmax.h"

namespace runmax::testing {

// One int32 per sequence: absent, drawn at random from data_seed ("seqused_kv"), or written out
// ("seqused_kv=3,0,7").
struct PerSequence {
  bool present = false;
  std::vector<int64_t> values;  // empty = drawn
  bool operator==(const PerSequence&) const = default;
};

// A merge and its gradients are one op; problem strings tell them apart.
inline constexpr int64_t kMergeBackward = 16;

struct ProblemSpec {
  int64_t direction = RUNMAX_FORWARD;  // or kMergeBackward
  int64_t partials = 2;                // merge: how many
  std::string upstream;                // backward: "d_out" or "d_lse"; "" = both
  std::string gradients;  // backward: names with commas between them; "" = all that there can be

  bool is_backward() const { return direction == RUNMAX_BACKWARD || direction == kMergeBackward; }

  int64_t dtype = RUNMAX_F32;
  int64_t out_dtype = RUNMAX_F32;   // default: dtype
  int64_t bias_dtype = RUNMAX_F32;  // default: dtype
  int64_t batch = 1;
  int64_t q_heads = 1;
  int64_t kv_heads = 1;  // default: q_heads
  int64_t q_len = 64;    // packed: the longest sequence
  int64_t kv_len = 64;   // default: q_len
  int64_t head_dim = 64;
  int64_t head_dim_v = 64;  // default: head_dim

  bool causal = false;
  int64_t align = RUNMAX_ALIGN_BOTTOM_RIGHT;
  int64_t window_left = -1;  // -1 = unbounded
  int64_t window_right = -1;
  int64_t sink_tokens = 0;
  bool scale_given = false;
  double scale = 0;
  double softcap = 0;

  std::string alibi;  // "", "h" or "bh"
  std::string bias;   // "" or four letters: b|1 h|1 q|1 k|1, e.g. "11qk"
  std::string mask;   // likewise
  bool sink = false;

  PerSequence seqused_q, seqused_kv, diagonal_offset, prefix_len;
  int64_t segments = 0;  // ids per sequence in segment_ids_q/_kv; 0 = absent
  int64_t block_q = 0, block_kv = 0;
  double block_density = 0.5;
  std::string block_heads = "1";  // 1, kv or q
  bool packed = false;
  PerSequence cu_seqlens_q, cu_seqlens_kv;  // given only with packed; drawn when not written out

  double dropout = 0;
  uint64_t seed = 0;
  uint64_t offset = 0;

  bool lse_lo = false;
  bool no_lse = false;
  bool keep_unused = false;
  bool batch_invariant = false;
  bool deterministic = false;
  int64_t num_splits = 0;
  std::string kernel;  // "" = the planner's choice

  // Where it runs.
  std::string isa;      // "" = all the machine has; "avx2" = nothing above it
  int64_t threads = 0;  // 0 = the device's default

  // Memory: how the tensors lie, and what fills the bytes that must not be read.
  std::string layout = "bhsd";  // bhsd bshd bhds padded strided negative broadcast
  int64_t alignment = 0;        // promised and exact; 0 = element-aligned and no better
  bool v_in_k = false;          // v is a view of k's leading channels
  std::string poison = "nan";   // nan inf 1e30 zero
  bool poison_hidden = false;   // also what no row sees: keys, values, bias entries, empty rows' q

  // Data.
  std::string fill = "normal";  // normal hostile onehot counting huge ones nonfinite
  uint64_t data_seed = 1;

  bool operator==(const ProblemSpec&) const = default;
};

struct ParsedProblem {
  ProblemSpec spec;
  std::string error;  // "" or one line "problem: WORD: what is wrong, what is allowed"
  bool ok() const { return error.empty(); }
};

ParsedProblem parse_problem(std::string_view text);

// Canonical: keys in one order, defaults left out. parse_problem(to_string(s)).spec == s.
std::string to_string(const ProblemSpec& spec);

// For tests: the text must be right. Prints the error and aborts otherwise.
ProblemSpec problem(std::string_view text);

// Every instruction set up to and including the named one; 0 for "" (no restriction).
uint64_t isa_mask(const std::string& isa);
// "f32" -> RUNMAX_F32; RUNMAX_DTYPE_NONE when unknown. And back.
runmax_dtype dtype_from_name(std::string_view name);
const char* name_of(runmax_dtype dtype);
int64_t size_of(runmax_dtype dtype);

}  // namespace runmax::testing
