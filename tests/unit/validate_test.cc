// Every rule of validate(), each by one change to a well-formed problem.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "core/problem.h"
#include "core/tensor.h"
#include "tests/unit/allocations.h"
#include "tests/unit/problems.h"

namespace runmax {
namespace {

using testing::backward_problem;
using testing::forward_problem;
using testing::merge_gradient_problem;
using testing::merge_problem;
using testing::packed_problem;
using Make = runmax_problem (*)();
using P = runmax_problem;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Refusal {
  Make make;
  std::function<void(P&)> change;
  const char* field;
  const char* text;  // part of the message
  runmax_status code = RUNMAX_INVALID_ARGUMENT;
};

const char kLongName[] = "a_kernel_name_of_sixty_four_characters_which_is_one_more_than_fits";

const std::vector<Refusal> kRefusals = {
    // The struct itself.
    {forward_problem, [](P& p) { p.struct_size = 0; }, "struct_size", "is 0, must be sizeof"},
    {forward_problem, [](P& p) { p.struct_size -= 1; }, "struct_size", "must be sizeof"},
    {forward_problem, [](P& p) { p.struct_size = 1u << 31; }, "struct_size", "must be sizeof"},
    {forward_problem, [](P& p) { p.op = 3; }, "op", "is 3, must be RUNMAX_FORWARD"},
    {forward_problem, [](P& p) { p.op = -1; }, "op", "is -1"},
    {forward_problem, [](P& p) { p.present |= 8; }, "present", "unknown bit 3"},
    {forward_problem, [](P& p) { p.flags |= uint64_t{1} << 63; }, "flags", "unknown bit 63"},

    // Options.
    {forward_problem, [](P& p) { p.scale = 0.5; }, "scale", "is 0.5 without RUNMAX_PRESENT_SCALE"},
    {forward_problem, [](P& p) { p.scale = kNan; }, "scale", "without RUNMAX_PRESENT_SCALE"},
    {forward_problem,
     [](P& p) { p.present = RUNMAX_PRESENT_SCALE, p.scale = kNan; }, "scale", "is nan, must be 0"},
    {forward_problem,
     [](P& p) { p.present = RUNMAX_PRESENT_SCALE, p.scale = -kInf; }, "scale", "is -inf"},
    {forward_problem,
     [](P& p) { p.present = RUNMAX_PRESENT_SCALE, p.scale = 0x1p-61; }, "scale", "[2^-60, 2^60]"},
    {forward_problem,
     [](P& p) { p.present = RUNMAX_PRESENT_SCALE, p.scale = -0x1.1p60; }, "scale", "2^60]"},
    {forward_problem, [](P& p) { p.softcap = -1; }, "softcap", "is -1, must be 0 or in"},
    {forward_problem, [](P& p) { p.softcap = kNan; }, "softcap", "is nan"},
    {forward_problem, [](P& p) { p.softcap = kInf; }, "softcap", "is inf"},
    {forward_problem, [](P& p) { p.softcap = 0x1p-70; }, "softcap", "[2^-60"},
    {forward_problem, [](P& p) { p.dropout = -0.1; }, "dropout", "is -0.1, must be in [0, 1]"},
    {forward_problem, [](P& p) { p.dropout = 1.5; }, "dropout", "is 1.5"},
    {forward_problem, [](P& p) { p.dropout = kNan; }, "dropout", "is nan"},
    {forward_problem, [](P& p) { p.window_left = 3; }, "window_left", "is 3 without"},
    {forward_problem, [](P& p) { p.window_right = 100000; }, "window_right", "is 100000 without"},
    {forward_problem,
     [](P& p) { p.present = RUNMAX_PRESENT_WINDOW_LEFT, p.window_left = -1; }, "window_left",
     "is -1, must be at least 0"},
    {forward_problem,
     [](P& p) { p.present = RUNMAX_PRESENT_WINDOW_RIGHT, p.window_right = -1; }, "window_right",
     "is -1, must be at least 0"},
    {forward_problem, [](P& p) { p.sink_tokens = -1; }, "sink_tokens", "is -1"},
    {forward_problem, [](P& p) { p.block_q = 0, p.block_index = make_tensor(RUNMAX_I32, {2, 3, 3, 2}); }, "block_q", "is 0, must be in [1"},
    {forward_problem, [](P& p) { p.block_kv = -3; }, "block_kv", "is -3, must be in [1"},
    {forward_problem, [](P& p) { p.block_index = {}; }, "block_q", "is 2, must be 0 without"},
    {forward_problem, [](P& p) { p.block_index = {}, p.block_q = 0; }, "block_kv", "is 3, must be 0"},
    {forward_problem, [](P& p) { p.num_splits = -1; }, "num_splits", "is -1"},
    {forward_problem,
     [](P& p) {
       p.flags |= RUNMAX_BATCH_INVARIANT;
       p.num_splits = 2;
     },
     "num_splits", "0 or 1 with RUNMAX_BATCH_INVARIANT"},
    {forward_problem, [](P& p) { p.diagonal_alignment = 2; }, "diagonal_alignment", "is 2"},
    {forward_problem, [](P& p) { p.kernel = kLongName; }, "kernel", "longer than 63"},
    {forward_problem, [](P& p) { p.kernel = ""; }, "kernel", "is empty"},
    {forward_problem, [](P& p) { p.max_q_len = 5; }, "max_q_len", "is 5, must be 0 without cu"},
    {forward_problem, [](P& p) { p.max_kv_len = 5; }, "max_kv_len", "is 5, must be 0 without cu"},
    {packed_problem, [](P& p) { p.max_q_len = -1; }, "max_q_len", "is -1"},

    // One tensor by itself.
    {forward_problem, [](P& p) { p.k.dtype = 7; }, "k.dtype", "is 7, must be a runmax_dtype"},
    {forward_problem, [](P& p) { p.k.dtype = -1; }, "k.dtype", "is -1"},
    {forward_problem, [](P& p) { p.bias.dtype = 0; }, "bias.dtype", "is 0 (absent) beside"},
    {forward_problem, [](P& p) { p.q.rank = 0; }, "q.rank", "is 0, must be in [1, 6]"},
    {forward_problem, [](P& p) { p.q.rank = 7; }, "q.rank", "is 7, must be in [1, 6]"},
    {forward_problem, [](P& p) { p.q.storage = 2; }, "q.storage", "is 2"},
    {forward_problem, [](P& p) { p.q.reserved[0] = 1; }, "q.reserved[0]", "is 1, must be 0"},
    {forward_problem, [](P& p) { p.q.reserved[1] = -1; }, "q.reserved[1]", "is -1, must be 0"},
    {forward_problem, [](P& p) { p.q.min_alignment = 24; }, "q.min_alignment", "is 24"},
    {forward_problem, [](P& p) { p.q.min_alignment = -4; }, "q.min_alignment", "is -4"},
    {forward_problem, [](P& p) { p.q.min_alignment = 2; }, "q.min_alignment", "element size (4)"},
    {forward_problem, [](P& p) { p.q.shape[2] = -5; }, "q.shape[2]", "is -5, must be in"},
    {forward_problem, [](P& p) { p.q.shape[2] = int64_t{1} << 41; }, "q.shape[2]", "[0, 2^40]"},
    {forward_problem,
     [](P& p) {
       p.q.shape[0] = p.q.shape[2] = int64_t{1} << 40;
       p.q.shape[1] = 0;
     },
     "q.shape", "at most 2^62"},
    {forward_problem, [](P& p) { p.q.stride[1] = int64_t{1} << 60; }, "q.stride[1]", "2^60 bytes"},
    {forward_problem, [](P& p) { p.q.stride[1] = INT64_MIN; }, "q.stride[1]", "2^60 bytes"},
    {forward_problem, [](P& p) { p.out.stride[0] = 0; }, "out.stride[0]", "is 0, must not be 0"},
    {forward_problem, [](P& p) { p.out.stride[2] = 4; }, "out.stride", "two elements in one place"},
    {backward_problem, [](P& p) { p.d_k.stride[3] = 0; }, "d_k.stride[3]", "is 0, must not be 0"},

    // Reserved for later releases.
    {forward_problem, [](P& p) { p.k.dtype = RUNMAX_F8_E4M3; }, "k.dtype", "is F8_E4M3, which is reserved", RUNMAX_UNSUPPORTED},
    {forward_problem, [](P& p) { p.v.dtype = RUNMAX_F8_E5M2; }, "v.dtype", "reserved", RUNMAX_UNSUPPORTED},
    {forward_problem, [](P& p) { p.v.dtype = RUNMAX_I8; }, "v.dtype", "reserved", RUNMAX_UNSUPPORTED},
    {forward_problem, [](P& p) { p.v.dtype = RUNMAX_I4; }, "v.dtype", "reserved", RUNMAX_UNSUPPORTED},
    {forward_problem, [](P& p) { p.k.storage = RUNMAX_STORAGE_PAGED; }, "k.storage", "reserved", RUNMAX_UNSUPPORTED},
    {forward_problem, [](P& p) { p.page_table = p.prefix_len; }, "page_table", "reserved", RUNMAX_UNSUPPORTED},
    {forward_problem, [](P& p) { p.q_scale = p.sink; }, "q_scale", "reserved", RUNMAX_UNSUPPORTED},
    {forward_problem, [](P& p) { p.k_scale = p.sink; }, "k_scale", "reserved", RUNMAX_UNSUPPORTED},
    {forward_problem, [](P& p) { p.v_scale = p.sink; }, "v_scale", "reserved", RUNMAX_UNSUPPORTED},
    {forward_problem, [](P& p) { p.max_logit = p.sink; }, "max_logit", "reserved", RUNMAX_UNSUPPORTED},

    // Which operands an operation takes.
    {forward_problem, [](P& p) { p.q = {}; }, "q", "is absent, must be present for forward"},
    {forward_problem, [](P& p) { p.k = {}; }, "k", "is absent"},
    {forward_problem, [](P& p) { p.v = {}; }, "v", "is absent"},
    {forward_problem, [](P& p) { p.out = {}; }, "out", "is absent"},
    {forward_problem, [](P& p) { p.lse = {}; }, "lse_lo", "is present without lse"},
    {forward_problem, [](P& p) { p.d_out = p.out; }, "d_out", "must be absent for forward"},
    {forward_problem, [](P& p) { p.d_lse = p.lse; }, "d_lse", "must be absent for forward"},
    {forward_problem, [](P& p) { p.d_q = p.q; }, "d_q", "must be absent for forward"},
    {forward_problem, [](P& p) { p.partial_out = p.out; }, "partial_out", "must be absent"},
    {forward_problem, [](P& p) { p.segment_ids_q = {}; }, "segment_ids_kv", "without segment_ids_q"},
    {forward_problem, [](P& p) { p.segment_ids_kv = {}; }, "segment_ids_q", "without segment_ids_kv"},
    {backward_problem, [](P& p) { p.out = {}; }, "out", "is absent, must be present for backward"},
    {backward_problem, [](P& p) { p.lse = {}; }, "lse", "is absent, must be present for backward"},
    {backward_problem, [](P& p) { p.d_out = p.d_lse = {}; }, "d_out", "is absent like d_lse"},
    {backward_problem,
     [](P& p) { p.d_q = p.d_k = p.d_v = p.d_bias = p.d_sink = p.d_alibi_slopes = {}; }, "d_q",
     "like every other gradient"},
    {backward_problem, [](P& p) { p.bias = {}; }, "d_bias", "is present without bias"},
    {backward_problem, [](P& p) { p.sink = {}; }, "d_sink", "is present without sink"},
    {backward_problem, [](P& p) { p.alibi_slopes = {}; }, "d_alibi_slopes", "without alibi_slopes"},
    {backward_problem, [](P& p) { p.d_partial_out = p.out; }, "d_partial_out", "must be absent"},
    {packed_problem, [](P& p) { p.cu_seqlens_kv = {}; }, "cu_seqlens_q", "without cu_seqlens_kv"},
    {packed_problem, [](P& p) { p.cu_seqlens_q = {}; }, "cu_seqlens_kv", "without cu_seqlens_q"},
    {merge_problem, [](P& p) { p.partial_out = {}; }, "partial_out", "is absent"},
    {merge_problem, [](P& p) { p.partial_lse = {}; }, "partial_lse", "is absent"},
    {merge_problem, [](P& p) { p.out = {}; }, "out", "is absent"},
    {merge_problem, [](P& p) { p.q = p.out; }, "q", "must be absent for merge"},
    {merge_problem, [](P& p) { p.lse_lo = p.lse; }, "lse_lo", "must be absent for merge"},
    {merge_gradient_problem, [](P& p) { p.lse = {}; }, "lse", "for the gradient of merge"},
    {merge_gradient_problem, [](P& p) { p.d_out = p.d_lse = {}; }, "d_out", "is absent like d_lse"},
    {merge_gradient_problem, [](P& p) { p.d_partial_out = p.d_partial_lse = {}; }, "d_partial_out", "like every other gradient"},
    {merge_problem, [](P& p) { p.present = RUNMAX_PRESENT_SCALE; }, "present", "0 for RUNMAX_MERGE"},
    {merge_problem, [](P& p) { p.flags = RUNMAX_CAUSAL; }, "flags", "0 for RUNMAX_MERGE"},
    {merge_problem, [](P& p) { p.softcap = 1; }, "softcap", "0 for RUNMAX_MERGE"},
    {merge_problem, [](P& p) { p.dropout = 0.5; }, "dropout", "0 for RUNMAX_MERGE"},
    {merge_problem, [](P& p) { p.sink_tokens = 1; }, "sink_tokens", "0 for RUNMAX_MERGE"},
    {merge_problem, [](P& p) { p.diagonal_alignment = 1; }, "diagonal_alignment", "0 for RUNMAX_MERGE"},
    {merge_problem, [](P& p) { p.num_splits = 2; }, "num_splits", "0 for RUNMAX_MERGE"},
    {merge_problem, [](P& p) { p.max_q_len = 2; }, "max_q_len", "is 2, must be 0"},

    // Types.
    {forward_problem, [](P& p) { p.q.dtype = RUNMAX_I32; }, "q.dtype", "is I32, must be F32, F64, BF16 or F16"},
    {forward_problem, [](P& p) { p.k.dtype = RUNMAX_BF16; }, "k.dtype", "is BF16, must be F32 (the type of q)"},
    {forward_problem, [](P& p) { p.v.dtype = RUNMAX_F64; }, "v.dtype", "is F64, must be F32"},
    {forward_problem, [](P& p) { p.out.dtype = RUNMAX_F16; }, "out.dtype", "is F16, must be F32 (the type of q)"},
    {forward_problem, [](P& p) { p.q.dtype = p.k.dtype = p.v.dtype = RUNMAX_BF16, p.out.dtype = RUNMAX_F16; }, "out.dtype", "must be BF16 (the type of q) or F32"},
    {forward_problem, [](P& p) { p.lse.dtype = RUNMAX_F64; }, "lse.dtype", "is F64, must be F32 (q is F32)"},
    {forward_problem, [](P& p) { p.lse_lo.dtype = RUNMAX_F64; }, "lse_lo.dtype", "must be F32"},
    {forward_problem, [](P& p) { p.q.dtype = p.k.dtype = p.v.dtype = p.out.dtype = RUNMAX_F64; }, "lse.dtype", "is F32, must be F64 (q is F64)"},
    {forward_problem, [](P& p) { p.bias.dtype = RUNMAX_BF16; }, "bias.dtype", "is BF16"},
    {forward_problem, [](P& p) { p.mask.dtype = RUNMAX_I32; }, "mask.dtype", "must be BOOL"},
    {forward_problem, [](P& p) { p.alibi_slopes.dtype = RUNMAX_F64; }, "alibi_slopes.dtype", "must be F32"},
    {forward_problem, [](P& p) { p.sink.dtype = RUNMAX_BF16; }, "sink.dtype", "must be F32"},
    {forward_problem, [](P& p) { p.seqused_q.dtype = RUNMAX_F32; }, "seqused_q.dtype", "must be I32"},
    {forward_problem, [](P& p) { p.seqused_kv.dtype = RUNMAX_F32; }, "seqused_kv.dtype", "must be I32"},
    {forward_problem, [](P& p) { p.prefix_len.dtype = RUNMAX_F32; }, "prefix_len.dtype", "must be I32"},
    {forward_problem, [](P& p) { p.diagonal_offset.dtype = RUNMAX_F32; }, "diagonal_offset.dtype", "must be I32"},
    {forward_problem, [](P& p) { p.segment_ids_q.dtype = RUNMAX_F32; }, "segment_ids_q.dtype", "must be I32"},
    {forward_problem, [](P& p) { p.segment_ids_kv.dtype = RUNMAX_F32; }, "segment_ids_kv.dtype", "must be I32"},
    {forward_problem, [](P& p) { p.block_index.dtype = RUNMAX_BOOL; }, "block_index.dtype", "must be I32"},
    {packed_problem, [](P& p) { p.cu_seqlens_q.dtype = RUNMAX_F32; }, "cu_seqlens_q.dtype", "must be I32"},
    {packed_problem, [](P& p) { p.cu_seqlens_kv.dtype = RUNMAX_F32; }, "cu_seqlens_kv.dtype", "must be I32"},
    {backward_problem, [](P& p) { p.d_out.dtype = RUNMAX_BF16; }, "d_out.dtype", "(the type of out)"},
    {backward_problem, [](P& p) { p.d_lse.dtype = RUNMAX_F64; }, "d_lse.dtype", "(the type of lse)"},
    {backward_problem, [](P& p) { p.d_q.dtype = RUNMAX_BF16; }, "d_q.dtype", "(the type of q)"},
    {backward_problem, [](P& p) { p.d_k.dtype = RUNMAX_BF16; }, "d_k.dtype", "(the type of k)"},
    {backward_problem, [](P& p) { p.d_v.dtype = RUNMAX_BF16; }, "d_v.dtype", "(the type of v)"},
    {backward_problem, [](P& p) { p.d_bias.dtype = RUNMAX_BF16; }, "d_bias.dtype", "(the type of bias)"},
    {backward_problem, [](P& p) { p.d_sink.dtype = RUNMAX_BF16; }, "d_sink.dtype", "(the type of sink)"},
    {backward_problem, [](P& p) { p.d_alibi_slopes.dtype = RUNMAX_BF16; }, "d_alibi_slopes.dtype", "(the type of alibi_slopes)"},
    {merge_problem, [](P& p) { p.partial_out.dtype = RUNMAX_BOOL; }, "partial_out.dtype", "is BOOL"},
    {merge_problem, [](P& p) { p.partial_lse.dtype = RUNMAX_F64; }, "partial_lse.dtype", "(partial_out is F32)"},
    {merge_problem, [](P& p) { p.out.dtype = RUNMAX_F64; }, "out.dtype", "must be F32, BF16 or F16"},
    {merge_problem, [](P& p) { p.partial_out.dtype = RUNMAX_BF16, p.out.dtype = RUNMAX_F16; }, "out.dtype", "must be BF16"},
    {merge_gradient_problem, [](P& p) { p.d_partial_out.dtype = RUNMAX_BF16; }, "d_partial_out.dtype", "(the type of partial_out)"},

    // Shapes.
    {forward_problem, [](P& p) { p.q = make_tensor(RUNMAX_F32, {6, 5, 4}); }, "q.rank", "is 3, must be 4 [batch, q_heads, q_len, head_dim]"},
    {forward_problem, [](P& p) { p.k.shape[0] = 3; }, "k.shape[0]", "is 3, must be 2 (batch, q.shape[0])"},
    {forward_problem, [](P& p) { p.k.shape[3] = 3; }, "k.shape[3]", "is 3, must be 4 (head_dim, q.shape[3])"},
    {forward_problem, [](P& p) { p.v.shape[1] = 2; }, "v.shape[1]", "is 2, must be 3 (kv_heads, k.shape[1])"},
    {forward_problem, [](P& p) { p.v.shape[2] = 6; }, "v.shape[2]", "is 6, must be 7 (kv_len, k.shape[2])"},
    {forward_problem, [](P& p) { p.out.shape[3] = 4; }, "out.shape[3]", "is 4, must be 8 (head_dim_v, v.shape[3])"},
    {forward_problem, [](P& p) { p.lse.shape[2] = 4; }, "lse.shape[2]", "is 4, must be 5 (q_len, q.shape[2])"},
    {forward_problem, [](P& p) { p.lse_lo.shape[1] = 1; }, "lse_lo.shape[1]", "must be 6 (q_heads"},
    {forward_problem, [](P& p) { p.q.shape[3] = p.k.shape[3] = 0; }, "q.shape[3]", "is 0, must be at least 1"},
    {forward_problem, [](P& p) { p.v.shape[3] = p.out.shape[3] = 0; }, "v.shape[3]", "is 0, must be at least 1"},
    {forward_problem, [](P& p) { p.k.shape[1] = p.v.shape[1] = 4; }, "q.shape[1]", "is 6 (q_heads), must be a multiple of 4 (kv_heads, k.shape[1])"},
    {forward_problem, [](P& p) { p.k.shape[1] = p.v.shape[1] = 0; }, "q.shape[1]", "multiple of 0 (kv_heads"},
    {forward_problem, [](P& p) { p.bias.shape[3] = 6; }, "bias.shape[3]", "is 6, must be 1 or 7 (kv_len"},
    {forward_problem, [](P& p) { p.bias.rank = 3; }, "bias.rank", "[1 or batch, 1 or q_heads, 1 or q_len, 1 or kv_len]"},
    {forward_problem, [](P& p) { p.mask.shape[1] = 3; }, "mask.shape[1]", "is 3, must be 1 or 6 (q_heads"},
    {forward_problem, [](P& p) { p.alibi_slopes.shape[0] = 3; }, "alibi_slopes.shape[0]", "must be 6"},
    {forward_problem, [](P& p) { p.alibi_slopes = make_tensor(RUNMAX_F32, {6, 2}); }, "alibi_slopes.shape[0]", "is 6, must be 2 (batch"},
    {forward_problem, [](P& p) { p.alibi_slopes = make_tensor(RUNMAX_F32, {2, 6, 1}); }, "alibi_slopes.rank", "is 3"},
    {forward_problem, [](P& p) { p.sink.shape[0] = 3; }, "sink.shape[0]", "must be 6"},
    {forward_problem, [](P& p) { p.seqused_q.shape[0] = 3; }, "seqused_q.shape[0]", "must be 2"},
    {forward_problem, [](P& p) { p.seqused_kv.rank = 2; }, "seqused_kv.rank", "is 2, must be 1 [batch]"},
    {forward_problem, [](P& p) { p.prefix_len.shape[0] = 1; }, "prefix_len.shape[0]", "must be 2"},
    {forward_problem, [](P& p) { p.diagonal_offset.shape[0] = 1; }, "diagonal_offset.shape[0]", "must be 2"},
    {forward_problem, [](P& p) { p.segment_ids_q.shape[1] = 7; }, "segment_ids_q.shape[1]", "must be 5"},
    {forward_problem, [](P& p) { p.segment_ids_kv.shape[1] = 5; }, "segment_ids_kv.shape[1]", "must be 7"},
    {forward_problem, [](P& p) { p.block_index.shape[2] = 2; }, "block_index.shape[2]", "is 2, must be 3 (q_len / block_q"},
    {forward_problem, [](P& p) { p.block_index.shape[1] = 2; }, "block_index.shape[1]", "must be 1, 3 (kv_heads) or 6 (q_heads)"},
    {forward_problem, [](P& p) { p.block_index.shape[0] = 1; }, "block_index.shape[0]", "must be 2 (batch"},
    {backward_problem, [](P& p) { p.d_q.shape[1] = 3; }, "d_q.shape[1]", "is 3, must be 6 (q.shape[1])"},
    {backward_problem, [](P& p) { p.d_k.shape[2] = 1; }, "d_k.shape[2]", "must be 7 (k.shape[2])"},
    {backward_problem, [](P& p) { p.d_bias = make_tensor(RUNMAX_F32, {2, 6, 5, 7}); }, "d_bias.shape[0]", "is 2, must be 1 (bias.shape[0])"},
    {backward_problem, [](P& p) { p.d_sink = make_tensor(RUNMAX_F32, {6, 1}); }, "d_sink.rank", "is 2, must be 1 (sink.rank)"},
    {backward_problem, [](P& p) { p.d_lse.shape[0] = 1; }, "d_lse.shape[0]", "must be 2 (lse.shape[0])"},
    {packed_problem, [](P& p) { p.cu_seqlens_kv.shape[0] = 3; }, "cu_seqlens_kv.shape[0]", "is 3, must be 4 (batch + 1"},
    {packed_problem, [](P& p) { p.cu_seqlens_q.shape[0] = 0; }, "cu_seqlens_q.shape[0]", "is 0, must be batch + 1"},
    {packed_problem, [](P& p) { p.cu_seqlens_q = make_tensor(RUNMAX_I32, {1, 4}); }, "cu_seqlens_q.rank", "is 2, must be 1 [batch + 1]"},
    {packed_problem, [](P& p) { p.q = make_tensor(RUNMAX_F32, {1, 6, 11, 4}); }, "q.rank", "is 4, must be 3 [total_q, q_heads, head_dim]"},
    {packed_problem, [](P& p) { p.v.shape[0] = 12; }, "v.shape[0]", "is 12, must be 13 (total_kv"},
    {packed_problem, [](P& p) { p.lse = make_tensor(RUNMAX_F32, {11, 6}); }, "lse.shape[0]", "is 11, must be 6 (q_heads"},
    {packed_problem, [](P& p) { p.bias.shape[2] = 5; }, "bias.shape[2]", "is 5, must be 1 or at least 6 (max_q_len)"},
    {packed_problem, [](P& p) { p.bias.shape[3] = 7; }, "bias.shape[3]", "is 7, must be 1 or at least 8 (max_kv_len)"},
    {packed_problem, [](P& p) { p.block_index.shape[0] = 2; }, "block_index.shape[0]", "must be 1, 3"},
    {packed_problem, [](P& p) { p.block_index.rank = 2; }, "block_index.rank", "is 2, must be 3"},
    {packed_problem, [](P& p) { p.alibi_slopes.shape[0] = 2; }, "alibi_slopes.shape[0]", "must be 3 (batch"},
    {merge_problem, [](P& p) { p.out = make_tensor(RUNMAX_F32, {2, 6, 4, 8}); }, "out.shape[2]", "is 4, must be 5 (q_len, partial_out.shape[3])"},
    {merge_problem, [](P& p) { p.partial_lse.shape[0] = 2; }, "partial_lse.shape[0]", "is 2, must be 3 (n, partial_out.shape[0])"},
    {merge_problem, [](P& p) { p.partial_out.rank = 4; }, "partial_out.rank", "is 4, must be 5 [n, batch"},

    // Limits.
    {forward_problem,
     [](P& p) {
       p = P{};
       p.struct_size = sizeof p;
       p.q = p.k = p.v = make_tensor(RUNMAX_F32, {1, 1, 1, 1});
       p.q.shape[2] = p.k.shape[2] = p.v.shape[2] = int64_t{1} << 33;
       p.out = p.q;
       p.dropout = 0.5;
     },
     "kv_len", "at most 2^62 query/key pairs"},
    {forward_problem,
     [](P& p) {
       p = P{};
       p.struct_size = sizeof p;
       p.q = p.k = p.v = make_tensor(RUNMAX_F32, {1, 1, 1, 1});
       p.q.shape[2] = (int64_t{1} << 32) + 1;
       p.out = p.q;
       p.dropout = 0.5;
     },
     "q_len", "is 4294967297, must be at most 2^32 with dropout"},
    {forward_problem,
     [](P& p) {
       p = P{};
       p.struct_size = sizeof p;
       p.q = p.k = p.v = p.out = make_tensor(RUNMAX_F32, {1, 1, 1, 1});
       p.k.shape[2] = p.v.shape[2] = (int64_t{1} << 34) + 1;
       p.dropout = 0.5;
     },
     "kv_len", "must be at most 2^34 with dropout"},
    {forward_problem,
     [](P& p) {
       p = P{};
       p.struct_size = sizeof p;
       p.q = p.k = p.v = make_tensor(RUNMAX_F32, {1, 1, 1, 1});
       p.q.shape[1] = (int64_t{1} << 32) + 1;
       p.out = p.q;
       p.dropout = 0.5;
     },
     "batch", "must be at most 2^32 (batch * q_heads) with dropout"},
};

TEST(Validate, RefusesEachRuleByFieldAndReason) {
  int number = 0;
  for (const Refusal& refusal : kRefusals) {
    P problem = refusal.make();
    ASSERT_TRUE(validate(problem).is_ok()) << validate(problem).status().message();
    refusal.change(problem);
    const Result<Problem> result = validate(problem);
    ASSERT_FALSE(result.is_ok()) << "case " << number << ": " << refusal.field << ", "
                                 << refusal.text;
    const Status& status = result.status();
    EXPECT_EQ(status.field(), refusal.field) << status.message();
    EXPECT_NE(status.message().find(refusal.text), std::string::npos)
        << status.message() << "\nlacks: " << refusal.text;
    EXPECT_EQ(status.message().rfind(status.field() + ": ", 0), 0u) << status.message();
    EXPECT_NE(status.message().find("must"), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
    EXPECT_EQ(status.code(), refusal.code) << status.message();
    ++number;
  }
}

using Accepted = std::pair<Make, std::function<void(P&)>>;

TEST(Validate, AcceptsWhatTheContractAllows) {
  const std::vector<Accepted> cases = {
      {forward_problem, [](P&) {}},
      {backward_problem, [](P&) {}},
      {packed_problem, [](P&) {}},
      {merge_problem, [](P&) {}},
      {merge_gradient_problem, [](P&) {}},
      {forward_problem, [](P& p) { p.lse = p.lse_lo = {}; }},
      {forward_problem, [](P& p) { p.present = RUNMAX_PRESENT_SCALE, p.scale = 0; }},
      {forward_problem, [](P& p) { p.present = RUNMAX_PRESENT_SCALE, p.scale = -0x1p-60; }},
      {forward_problem, [](P& p) { p.present = RUNMAX_PRESENT_SCALE, p.scale = 0x1p60; }},
      {forward_problem, [](P& p) { p.dropout = 1; }},
      {forward_problem, [](P& p) { p.flags = 0x3f; }},
      {forward_problem, [](P& p) { p.diagonal_alignment = RUNMAX_ALIGN_TOP_LEFT; }},
      {forward_problem, [](P& p) { p.num_splits = 1000; }},
      {forward_problem, [](P& p) { p.q.dtype = p.k.dtype = p.v.dtype = RUNMAX_BF16; }},
      {forward_problem,
       [](P& p) { p.q.dtype = p.k.dtype = p.v.dtype = p.out.dtype = p.bias.dtype = RUNMAX_F16; }},
      {forward_problem, [](P& p) { std::fill_n(p.k.stride, 4, 0); }},   // broadcast input
      {forward_problem, [](P& p) { p.q.stride[0] = -p.q.stride[0]; }},  // any order
      {forward_problem,
       [](P& p) {
         p.out.stride[3] = -2, p.out.stride[2] = 40, p.out.stride[1] = 200;
         p.out.stride[0] = 1200;
       }},
      {forward_problem, [](P& p) { p.q.min_alignment = 64; }},
      {forward_problem,
       [](P& p) {
         p.alibi_slopes = make_tensor(RUNMAX_F32, {2, 6});
       }},
      {forward_problem, [](P& p) { p.block_index.shape[1] = 1; }},
      {forward_problem, [](P& p) { p.block_index.shape[1] = 6; }},
      {forward_problem, [](P& p) { p.block_index.shape[3] = 0; }},
      {backward_problem, [](P& p) { p.d_out = {}; }},
      {backward_problem, [](P& p) { p.d_lse = {}; }},
      {backward_problem, [](P& p) { p.d_q = p.d_k = p.d_v = p.d_sink = p.d_alibi_slopes = {}; }},
      {packed_problem, [](P& p) { p.max_q_len = p.max_kv_len = 0; }},
      {packed_problem, [](P& p) { p.bias.shape[2] = 1, p.bias.shape[3] = 9; }},
      {merge_problem, [](P& p) { p.out.dtype = RUNMAX_BF16; }},
      {merge_problem, [](P& p) { p.lse = {}; }},
      {merge_problem,
       [](P& p) {
         p.partial_out = make_tensor(RUNMAX_F32, {3, 11, 6, 8});
         p.partial_lse = make_tensor(RUNMAX_F32, {3, 6, 11});
         p.out = make_tensor(RUNMAX_F32, {11, 6, 8});
         p.lse = make_tensor(RUNMAX_F32, {6, 11});
       }},
      {merge_problem, [](P& p) { p.partial_out.shape[0] = p.partial_lse.shape[0] = 0; }},
  };
  int number = 0;
  for (const auto& [make, change] : cases) {
    P problem = make();
    change(problem);
    const Result<Problem> result = validate(problem);
    EXPECT_TRUE(result.is_ok()) << "case " << number << ": " << result.status().message();
    ++number;
  }
}

TEST(Validate, AcceptsEmptyDimensions) {
  for (const int zero : {0, 1, 2}) {  // batch, q_len, kv_len
    P p{};
    p.struct_size = sizeof p;
    const int64_t batch = zero == 0 ? 0 : 2;
    const int64_t q_len = zero == 1 ? 0 : 5;
    const int64_t kv_len = zero == 2 ? 0 : 7;
    p.q = make_tensor(RUNMAX_F32, {batch, 6, q_len, 4});
    p.k = p.v = make_tensor(RUNMAX_F32, {batch, 3, kv_len, 4});
    p.out = p.q;
    const Result<Problem> result = validate(p);
    ASSERT_TRUE(result.is_ok()) << result.status().message();
    EXPECT_EQ(result.value().kv_len, kv_len);
  }
  P p{};  // no heads at all
  p.struct_size = sizeof p;
  p.q = p.k = p.v = p.out = make_tensor(RUNMAX_F32, {2, 0, 5, 4});
  EXPECT_TRUE(validate(p).is_ok()) << validate(p).status().message();
}

TEST(Validate, DerivesDenseFields) {
  P p = forward_problem();
  p.flags = RUNMAX_CAUSAL;
  p.present = RUNMAX_PRESENT_WINDOW_LEFT | RUNMAX_PRESENT_WINDOW_RIGHT;
  p.window_left = 3;
  p.window_right = INT64_MAX;
  char name[] = "generic";
  p.kernel = name;
  const Result<Problem> result = validate(p);
  ASSERT_TRUE(result.is_ok()) << result.status().message();
  const Problem& problem = result.value();
  std::strcpy(name, "other");  // the name was copied
  EXPECT_EQ(problem.kernel, "generic");
  EXPECT_EQ(problem.raw.kernel, nullptr);
  EXPECT_FALSE(problem.packed);
  EXPECT_EQ(problem.batch, 2);
  EXPECT_EQ(problem.q_heads, 6);
  EXPECT_EQ(problem.kv_heads, 3);
  EXPECT_EQ(problem.group_size, 2);
  EXPECT_EQ(problem.q_len, 5);
  EXPECT_EQ(problem.kv_len, 7);
  EXPECT_EQ(problem.head_dim, 4);
  EXPECT_EQ(problem.head_dim_v, 8);
  EXPECT_EQ(problem.total_q, 10);
  EXPECT_EQ(problem.total_kv, 14);
  EXPECT_EQ(problem.scale, 0.5);
  EXPECT_EQ(problem.window_left, 3);
  EXPECT_EQ(problem.window_right, 0);
}

TEST(Validate, ResolvesScaleAndWindows) {
  P p = forward_problem();
  ASSERT_TRUE(validate(p).is_ok());
  EXPECT_EQ(validate(p).value().window_left, kUnbounded);
  EXPECT_EQ(validate(p).value().window_right, kUnbounded);
  p.present = RUNMAX_PRESENT_SCALE | RUNMAX_PRESENT_WINDOW_LEFT | RUNMAX_PRESENT_WINDOW_RIGHT;
  p.window_left = INT64_MAX;
  p.window_right = 2;
  EXPECT_EQ(validate(p).value().scale, 0.0);
  EXPECT_EQ(validate(p).value().window_left, kUnbounded);
  EXPECT_EQ(validate(p).value().window_right, 2);
}

TEST(Validate, DerivesPackedFields) {
  P p = packed_problem();
  ASSERT_TRUE(validate(p).is_ok()) << validate(p).status().message();
  const Problem bounded = validate(p).value();
  EXPECT_TRUE(bounded.packed);
  EXPECT_EQ(bounded.batch, 3);
  EXPECT_EQ(bounded.total_q, 11);
  EXPECT_EQ(bounded.total_kv, 13);
  EXPECT_EQ(bounded.q_len, 6);
  EXPECT_EQ(bounded.kv_len, 8);
  p.max_q_len = p.max_kv_len = 0;
  EXPECT_EQ(validate(p).value().q_len, 11);
  EXPECT_EQ(validate(p).value().kv_len, 13);
  p.max_q_len = 100;  // a bound above the total says nothing more
  p.bias = {};
  EXPECT_EQ(validate(p).value().q_len, 11);
}

TEST(Validate, DerivesMergeFields) {
  const Problem problem = validate(merge_gradient_problem()).value();
  EXPECT_EQ(problem.num_partials, 3);
  EXPECT_EQ(problem.batch, 2);
  EXPECT_EQ(problem.q_heads, 6);
  EXPECT_EQ(problem.q_len, 5);
  EXPECT_EQ(problem.head_dim_v, 8);
}

TEST(Validate, AllocatesNothingForGoodProblems) {
  for (const Make make : {forward_problem, backward_problem, packed_problem, merge_problem}) {
    const P problem = make();
    const int64_t before = testing::allocations();
    const bool good = validate(problem).is_ok();
    EXPECT_EQ(testing::allocations(), before);
    EXPECT_TRUE(good);
  }
}

// Whatever the bytes are, the answer is a status; the sanitizers watch the arithmetic.
TEST(Validate, SurvivesRandomBytes) {
  std::mt19937_64 random(7);
  const Make makes[] = {forward_problem, backward_problem, packed_problem, merge_gradient_problem};
  const int64_t values[] = {0,
                            1,
                            -1,
                            2,
                            7,
                            INT32_MAX,
                            INT32_MIN,
                            INT64_MAX,
                            INT64_MIN,
                            int64_t{1} << 32,
                            int64_t{1} << 40,
                            (int64_t{1} << 60) - 1};
  int refused = 0;
  for (int round = 0; round < 50000; ++round) {
    P problem = makes[round % 4]();
    auto* bytes = reinterpret_cast<unsigned char*>(&problem);
    const int changes = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < changes; ++i) {
      const size_t first = sizeof(uint32_t) * 2;  // struct_size says how much may be read
      const size_t word = first + random() % (sizeof(P) - first) / 8 * 8;
      if (random() % 2 == 0) {
        std::memcpy(bytes + word, &values[random() % std::size(values)], 8);
      } else {
        bytes[word + random() % 8] = static_cast<unsigned char>(random());
      }
    }
    problem.kernel = nullptr;
    const Result<Problem> result = validate(problem);
    if (result.is_ok()) continue;
    ++refused;
    ASSERT_FALSE(result.status().field().empty());
  }
  EXPECT_GT(refused, 10000);
}

// A caller of a later release: longer, and fine as long as it asks for nothing new.
TEST(Validate, AcceptsLongerStructsWithZeroTail) {
  struct Longer {
    P problem;
    uint64_t more[4];
  } longer{forward_problem(), {}};
  longer.problem.struct_size = sizeof longer;
  const Result<Problem> result = validate(longer.problem);
  ASSERT_TRUE(result.is_ok()) << result.status().message();
  EXPECT_EQ(result.value().raw.struct_size, sizeof(P));
  longer.more[2] = 1;
  const Result<Problem> refused = validate(longer.problem);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().field(), "struct_size");
  EXPECT_NE(refused.status().message().find("byte " + std::to_string(sizeof(P) + 16)),
            std::string::npos)
      << refused.status().message();
}

}  // namespace
}  // namespace runmax
