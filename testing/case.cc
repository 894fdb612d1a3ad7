#include "testing/case.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <utility>

#include "testing/element.h"

#if defined(__SANITIZE_ADDRESS__)
#define RUNMAX_TESTING_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RUNMAX_TESTING_ASAN 1
#endif
#endif
#ifdef RUNMAX_TESTING_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace runmax::testing {
namespace {

constexpr int64_t kGuard = 256;
constexpr int64_t kBlockAlignment = 4096;
// Beyond it a problem string is a slip or an attack; sanitizers abort where operator new throws.
constexpr int64_t kMaxBlock = int64_t{1} << 38;
constexpr double kInf = std::numeric_limits<double>::infinity();

// A byte pattern that no arithmetic produces: a signalling NaN in every float type.
const uint8_t* output_pattern(runmax_dtype dtype) {
  static constexpr uint8_t kF64[] = {0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xf5, 0x7f};
  static constexpr uint8_t kF32[] = {0xa5, 0xa5, 0xa5, 0x7f};
  static constexpr uint8_t kBf16[] = {0xa5, 0x7f};
  static constexpr uint8_t kF16[] = {0xa5, 0x7d};
  switch (dtype) {
    case RUNMAX_F64:
      return kF64;
    case RUNMAX_F32:
      return kF32;
    case RUNMAX_BF16:
      return kBf16;
    default:
      return kF16;
  }
}

// What may lie in storage that must not be read.
void store_poison(const std::string& poison, runmax_dtype dtype, void* base, int64_t index) {
  double value = poison == "nan"    ? std::nan("")
                 : poison == "inf"  ? kInf
                 : poison == "1e30" ? 1e30
                                    : 0;
  if (dtype == RUNMAX_F16 && poison == "1e30") value = 65504;
  if (dtype == RUNMAX_I32) value = poison == "zero" ? 0 : poison == "nan" ? INT32_MIN : INT32_MAX;
  if (dtype == RUNMAX_BOOL) value = poison == "zero" ? 0 : 0xff;
  store(dtype, base, index, value);
}

void fill_pattern(std::byte* to, int64_t bytes, const void* pattern, int64_t size) {
  if (bytes <= 0) return;
  std::memcpy(to, pattern, static_cast<size_t>(std::min(size, bytes)));
  for (int64_t done = size; done < bytes; done *= 2) {
    std::memcpy(to + done, to, static_cast<size_t>(std::min(done, bytes - done)));
  }
}

int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result) || result > (int64_t{1} << 56)) {
    throw std::length_error("problem: a tensor has too many elements, 2^56 is the limit here");
  }
  return result;
}

// Strides for a shape in the named layout. `order` lists the dimensions from the outermost in
// memory to the innermost.
runmax_tensor lay_out(runmax_dtype dtype, const std::vector<int64_t>& shape,
                      const std::string& layout, int64_t alignment) {
  runmax_tensor tensor{};
  tensor.dtype = dtype;
  tensor.rank = static_cast<int32_t>(shape.size());
  tensor.min_alignment = static_cast<int32_t>(alignment);
  std::vector<int> order(shape.size());
  for (size_t d = 0; d < shape.size(); ++d) order[d] = static_cast<int>(d);
  // [batch, heads, len, dim] -> token-major; packed [tokens, heads, dim] -> head-major.
  if (layout == "bshd" || layout == "padded") {
    if (shape.size() >= 4) std::swap(order[shape.size() - 3], order[shape.size() - 2]);
    if (shape.size() == 3) std::swap(order[0], order[1]);
  }
  if (layout == "bhds" && shape.size() >= 2) std::swap(order[shape.size() - 2], order.back());
  const bool gaps = layout == "padded" || layout == "strided" || layout == "negative";
  int64_t step = layout == "strided" ? 3 : 1;
  for (size_t i = order.size(); i-- > 0;) {
    const int d = order[i];
    tensor.shape[d] = shape[d];
    tensor.stride[d] = layout == "negative" ? -step : step;
    step = product(step, std::max<int64_t>(shape[d], 1)) + (gaps ? 3 : 0);
  }
  return tensor;
}

// Lengths that hit the edges often: none, all, anything.
int64_t draw_length(const ProblemSpec& spec, uint64_t stream, int64_t b, int64_t length) {
  switch (random_below(spec.data_seed ^ stream, 2 * b, 5)) {
    case 0:
      return 0;
    case 1:
      return length;
    default:
      return random_below(spec.data_seed ^ stream, 2 * b + 1, length + 1);
  }
}

constexpr uint64_t stream_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

std::vector<int64_t> seqlen_starts(const ProblemSpec& spec, bool q) {
  const PerSequence& given = q ? spec.cu_seqlens_q : spec.cu_seqlens_kv;
  if (!given.values.empty()) return given.values;
  std::vector<int64_t> starts = {0};
  for (int64_t b = 0; b < spec.batch; ++b) {
    starts.push_back(starts.back() + draw_length(spec,
                                                 stream_of(q ? "cu_seqlens_q" : "cu_seqlens_kv"), b,
                                                 q ? spec.q_len : spec.kv_len));
  }
  return starts;
}

// Drawn packed storage ends with a few tokens of no sequence.
int64_t packed_total(const ProblemSpec& spec, bool q) {
  const bool given = !(q ? spec.cu_seqlens_q : spec.cu_seqlens_kv).values.empty();
  return std::max<int64_t>(0, seqlen_starts(spec, q).back()) +
         (given ? 0 : random_below(spec.data_seed ^ stream_of("tail"), q, 4));
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

uint64_t hash_bytes(const std::byte* data, int64_t bytes) {
  uint64_t hash = 0x9e3779b97f4a7c15u;
  int64_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, data + i, 8);
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  for (; i < bytes; ++i) hash = (hash ^ static_cast<uint64_t>(data[i])) * 0x100000001b3u;
  return hash;
}

int64_t element_total(const runmax_tensor& tensor) {
  int64_t count = 1;
  for (int d = 0; d < tensor.rank; ++d) count *= tensor.shape[d];
  return count;
}

}  // namespace

bool Operand::is_output(const runmax_problem& problem) const {
  const std::string_view n = name;
  if (n == "out" || n == "lse" || n == "lse_lo") return !asks_for_gradients(problem);
  return n.starts_with("d_") && n != "d_out" && n != "d_lse";
}

bool asks_for_gradients(const runmax_problem& problem) {
  return problem.op == RUNMAX_BACKWARD || problem.d_out.dtype != RUNMAX_DTYPE_NONE ||
         problem.d_lse.dtype != RUNMAX_DTYPE_NONE;
}

const std::vector<Operand>& operands() {
  using P = runmax_problem;
  using A = runmax_args;
  static const std::vector<Operand> all = {
      {"q", &P::q, [](A& a, void* p) { a.q = p; }},
      {"k", &P::k, [](A& a, void* p) { a.k = p; }},
      {"v", &P::v, [](A& a, void* p) { a.v = p; }},
      {"out", &P::out, [](A& a, void* p) { a.out = p; }},
      {"lse", &P::lse, [](A& a, void* p) { a.lse = p; }},
      {"lse_lo", &P::lse_lo, [](A& a, void* p) { a.lse_lo = p; }},
      {"bias", &P::bias, [](A& a, void* p) { a.bias = p; }},
      {"mask", &P::mask, [](A& a, void* p) { a.mask = p; }},
      {"alibi_slopes", &P::alibi_slopes, [](A& a, void* p) { a.alibi_slopes = p; }},
      {"sink", &P::sink, [](A& a, void* p) { a.sink = p; }},
      {"seqused_q", &P::seqused_q, [](A& a, void* p) { a.seqused_q = static_cast<int32_t*>(p); }},
      {"seqused_kv", &P::seqused_kv,
       [](A& a, void* p) { a.seqused_kv = static_cast<int32_t*>(p); }},
      {"prefix_len", &P::prefix_len,
       [](A& a, void* p) { a.prefix_len = static_cast<int32_t*>(p); }},
      {"diagonal_offset", &P::diagonal_offset,
       [](A& a, void* p) { a.diagonal_offset = static_cast<int32_t*>(p); }},
      {"segment_ids_q", &P::segment_ids_q,
       [](A& a, void* p) { a.segment_ids_q = static_cast<int32_t*>(p); }},
      {"segment_ids_kv", &P::segment_ids_kv,
       [](A& a, void* p) { a.segment_ids_kv = static_cast<int32_t*>(p); }},
      {"cu_seqlens_q", &P::cu_seqlens_q,
       [](A& a, void* p) { a.cu_seqlens_q = static_cast<int32_t*>(p); }},
      {"cu_seqlens_kv", &P::cu_seqlens_kv,
       [](A& a, void* p) { a.cu_seqlens_kv = static_cast<int32_t*>(p); }},
      {"block_index", &P::block_index,
       [](A& a, void* p) { a.block_index = static_cast<int32_t*>(p); }},
      {"d_out", &P::d_out, [](A& a, void* p) { a.d_out = p; }},
      {"d_lse", &P::d_lse, [](A& a, void* p) { a.d_lse = p; }},
      {"d_q", &P::d_q, [](A& a, void* p) { a.d_q = p; }},
      {"d_k", &P::d_k, [](A& a, void* p) { a.d_k = p; }},
      {"d_v", &P::d_v, [](A& a, void* p) { a.d_v = p; }},
      {"d_bias", &P::d_bias, [](A& a, void* p) { a.d_bias = p; }},
      {"d_sink", &P::d_sink, [](A& a, void* p) { a.d_sink = p; }},
      {"d_alibi_slopes", &P::d_alibi_slopes, [](A& a, void* p) { a.d_alibi_slopes = p; }},
      {"partial_out", &P::partial_out, [](A& a, void* p) { a.partial_out = p; }},
      {"partial_lse", &P::partial_lse, [](A& a, void* p) { a.partial_lse = p; }},
      {"d_partial_out", &P::d_partial_out, [](A& a, void* p) { a.d_partial_out = p; }},
      {"d_partial_lse", &P::d_partial_lse, [](A& a, void* p) { a.d_partial_lse = p; }},
  };
  return all;
}

// ---------------------------------------------------------------------------------- description

namespace {

// Laid out like what they are gradients of, but for views and shared storage, which outputs may
// not have.
void add_gradients(const ProblemSpec& spec, runmax_problem& p) {
  if (spec.upstream != "d_lse") p.d_out = p.out;
  if (spec.upstream != "d_out") p.d_lse = p.lse;
  const auto wanted = [&](std::string_view name) {
    const std::string list = "," + spec.gradients + ",";
    return spec.gradients.empty() || list.find("," + std::string(name) + ",") != std::string::npos;
  };
  const auto add = [&](const char* name, runmax_tensor& gradient, const runmax_tensor& input) {
    if (input.dtype == RUNMAX_DTYPE_NONE || !wanted(name)) return;
    gradient = input;
    const bool view = spec.layout == "broadcast" || (spec.v_in_k && &input == &p.v);
    if (!view) return;
    gradient = lay_out(input.dtype, std::vector<int64_t>(input.shape, input.shape + input.rank),
                       spec.layout == "broadcast" ? "bhsd" : spec.layout, input.min_alignment);
  };
  add("d_q", p.d_q, p.q);
  add("d_k", p.d_k, p.k);
  add("d_v", p.d_v, p.v);
  add("d_bias", p.d_bias, p.bias);
  add("d_sink", p.d_sink, p.sink);
  add("d_alibi_slopes", p.d_alibi_slopes, p.alibi_slopes);
  add("d_partial_out", p.d_partial_out, p.partial_out);
  add("d_partial_lse", p.d_partial_lse, p.partial_lse);
}

}  // namespace

runmax_problem make_problem(const ProblemSpec& spec) {
  runmax_problem p{};
  p.struct_size = sizeof p;
  p.op = spec.direction == kMergeBackward ? RUNMAX_MERGE : static_cast<int32_t>(spec.direction);
  if (spec.causal) p.flags |= RUNMAX_CAUSAL;
  if (spec.deterministic) p.flags |= RUNMAX_DETERMINISTIC;
  if (spec.batch_invariant) p.flags |= RUNMAX_BATCH_INVARIANT;
  if (spec.keep_unused) p.flags |= RUNMAX_KEEP_UNUSED;
  if (spec.scale_given) {
    p.present |= RUNMAX_PRESENT_SCALE;
    p.scale = spec.scale;
  }
  if (spec.window_left >= 0) {
    p.present |= RUNMAX_PRESENT_WINDOW_LEFT;
    p.window_left = spec.window_left;
  }
  if (spec.window_right >= 0) {
    p.present |= RUNMAX_PRESENT_WINDOW_RIGHT;
    p.window_right = spec.window_right;
  }
  p.softcap = spec.softcap;
  p.dropout = spec.dropout;
  p.sink_tokens = spec.sink_tokens;
  p.diagonal_alignment = static_cast<int32_t>(spec.align);
  p.num_splits = static_cast<int32_t>(spec.num_splits);
  p.kernel = spec.kernel.empty() ? nullptr : spec.kernel.c_str();

  const auto dtype = static_cast<runmax_dtype>(spec.dtype);
  const auto out_dtype = static_cast<runmax_dtype>(spec.out_dtype);
  const runmax_dtype stat_dtype = dtype == RUNMAX_F64 ? RUNMAX_F64 : RUNMAX_F32;
  // Views with stride 0 are for inputs, permutations for q, k, v and out; gaps and signs for all.
  const bool shared = spec.layout == "broadcast";
  const std::string main_layout = shared ? "bhsd" : spec.layout;
  std::string side_layout = "bhsd";
  if (spec.layout == "strided" || spec.layout == "padded") side_layout = "strided";
  if (spec.layout == "negative") side_layout = "negative";
  const auto main = [&](runmax_dtype type, const std::vector<int64_t>& shape) {
    return lay_out(type, shape, main_layout, spec.alignment);
  };
  const auto side = [&](runmax_dtype type, const std::vector<int64_t>& shape) {
    return lay_out(type, shape, side_layout, 0);
  };

  const int64_t total_q = spec.packed ? packed_total(spec, true) : 0;
  const int64_t total_kv = spec.packed ? packed_total(spec, false) : 0;
  const auto q_shape = [&](int64_t dim) -> std::vector<int64_t> {
    if (spec.packed) return {total_q, spec.q_heads, dim};
    return {spec.batch, spec.q_heads, spec.q_len, dim};
  };
  const auto kv_shape = [&](int64_t dim) -> std::vector<int64_t> {
    if (spec.packed) return {total_kv, spec.kv_heads, dim};
    return {spec.batch, spec.kv_heads, spec.kv_len, dim};
  };
  std::vector<int64_t> lse_shape = {spec.batch, spec.q_heads, spec.q_len};
  if (spec.packed) lse_shape = {spec.q_heads, total_q};

  p.out = main(out_dtype, q_shape(spec.head_dim_v));
  if (!spec.no_lse) p.lse = side(stat_dtype, lse_shape);
  if (spec.lse_lo) p.lse_lo = side(stat_dtype, lse_shape);

  if (p.op == RUNMAX_MERGE) {
    std::vector<int64_t> out_shape = q_shape(spec.head_dim_v);
    out_shape.insert(out_shape.begin(), spec.partials);
    lse_shape.insert(lse_shape.begin(), spec.partials);
    p.partial_out = main(out_dtype, out_shape);
    p.partial_lse = side(stat_dtype, lse_shape);
    if (spec.is_backward()) add_gradients(spec, p);
    return p;
  }

  p.q = main(dtype, q_shape(spec.head_dim));
  p.k = main(dtype, kv_shape(spec.head_dim));
  p.v = main(dtype, kv_shape(spec.head_dim_v));
  if (spec.v_in_k) {
    for (int d = 0; d < p.v.rank; ++d) p.v.stride[d] = p.k.stride[d];
  }
  if (shared && !spec.packed) {
    p.q.stride[1] = 0;  // every head asks the same
    p.k.stride[0] = 0;  // one cache for the whole batch
    p.v.stride[0] = 0;
  }

  const auto spread = [&](const std::string& pattern) -> std::vector<int64_t> {
    return {pattern[0] == '1' ? 1 : spec.batch, pattern[1] == '1' ? 1 : spec.q_heads,
            pattern[2] == '1' ? 1 : spec.q_len, pattern[3] == '1' ? 1 : spec.kv_len};
  };
  if (!spec.bias.empty()) {
    p.bias = side(static_cast<runmax_dtype>(spec.bias_dtype), spread(spec.bias));
  }
  if (!spec.mask.empty()) p.mask = side(RUNMAX_BOOL, spread(spec.mask));
  if (spec.alibi == "h") p.alibi_slopes = side(stat_dtype, {spec.q_heads});
  if (spec.alibi == "bh") p.alibi_slopes = side(stat_dtype, {spec.batch, spec.q_heads});
  if (spec.sink) p.sink = side(stat_dtype, {spec.q_heads});

  const auto ints = [&](const std::vector<int64_t>& shape) { return side(RUNMAX_I32, shape); };
  if (spec.seqused_q.present) p.seqused_q = ints({spec.batch});
  if (spec.seqused_kv.present) p.seqused_kv = ints({spec.batch});
  if (spec.prefix_len.present) p.prefix_len = ints({spec.batch});
  if (spec.diagonal_offset.present) p.diagonal_offset = ints({spec.batch});
  if (spec.segments > 0) {
    p.segment_ids_q = spec.packed ? ints({total_q}) : ints({spec.batch, spec.q_len});
    p.segment_ids_kv = spec.packed ? ints({total_kv}) : ints({spec.batch, spec.kv_len});
  }
  if (spec.packed) {
    p.cu_seqlens_q = ints({spec.batch + 1});
    p.cu_seqlens_kv = ints({spec.batch + 1});
    p.max_q_len = spec.q_len;
    p.max_kv_len = spec.kv_len;
  }
  if (spec.block_q > 0) {
    p.block_q = spec.block_q;
    p.block_kv = spec.block_kv;
    const int64_t heads = spec.block_heads == "kv"  ? spec.kv_heads
                          : spec.block_heads == "q" ? spec.q_heads
                                                    : 1;
    const double kv_blocks = static_cast<double>(ceil_div(spec.kv_len, spec.block_kv));
    const int64_t selected = static_cast<int64_t>(std::ceil(spec.block_density * kv_blocks)) + 2;
    if (spec.packed) {
      const std::vector<int64_t> starts = seqlen_starts(spec, true);
      int64_t q_blocks = 0;
      for (int64_t b = 0; b < spec.batch; ++b) {
        q_blocks += ceil_div(std::max<int64_t>(0, starts[b + 1] - starts[b]), spec.block_q);
      }
      p.block_index = ints({heads, q_blocks, selected});
    } else {
      p.block_index = ints({spec.batch, heads, ceil_div(spec.q_len, spec.block_q), selected});
    }
  }

  if (spec.is_backward()) add_gradients(spec, p);
  return p;
}

// --------------------------------------------------------------------------------- construction

Case::Case(const ProblemSpec& spec) : spec_(spec) {
  problem_ = make_problem(spec_);
  args_.struct_size = sizeof args_;
  args_.seed = spec_.seed;
  args_.offset = spec_.offset;
  allocate();
  fill_data();
  poison_unused();
  if (spec_.poison_hidden) poison_hidden();
  seal();
}

void Case::allocate() {
  for (const Operand& operand : operands()) {
    const runmax_tensor& tensor = problem_.*operand.tensor;
    if (tensor.dtype == RUNMAX_DTYPE_NONE) continue;
    Buffer buffer;
    buffer.tensor = tensor;
    buffer.output = operand.is_output(problem_);
    if (spec_.v_in_k && std::string_view(operand.name) == "v") {
      buffer = buffers_.at("k");
      buffer.tensor = tensor;
      buffers_["v"] = buffer;
      operand.bind(args_, buffer.pointer());
      continue;
    }

    const int64_t size = size_of(tensor.dtype);
    int64_t low = 0, high = 0;
    bool empty = false;
    for (int d = 0; d < tensor.rank; ++d) {
      empty = empty || tensor.shape[d] == 0;
      const int64_t reach = (tensor.shape[d] - 1) * tensor.stride[d];
      (reach < 0 ? low : high) += reach;
    }
    if (empty) low = high = 0;
    buffer.storage_bytes = empty ? 0 : product(high - low + 1, size);

    // The address is a multiple of the promised alignment, and of no larger power of two.
    const int64_t exact = tensor.min_alignment > 0 ? tensor.min_alignment : size;
    const int64_t earliest = kGuard - low * size;
    buffer.origin = ceil_div(earliest, 2 * exact) * 2 * exact + exact;
    buffer.storage_begin = buffer.origin + low * size;
    buffer.block_bytes = ceil_div(buffer.storage_begin + buffer.storage_bytes + kGuard, 64) * 64;
    if (buffer.block_bytes > kMaxBlock) throw std::bad_alloc();
    const auto alignment = std::align_val_t{kBlockAlignment};
    buffer.block = std::shared_ptr<std::byte>(
        static_cast<std::byte*>(::operator new(static_cast<size_t>(buffer.block_bytes), alignment)),
        [](std::byte* p) { ::operator delete (p, std::align_val_t{kBlockAlignment}); });

    uint64_t pattern = 0;
    store_poison(spec_.poison, tensor.dtype, &pattern, 0);
    fill_pattern(buffer.block.get(), buffer.block_bytes, &pattern, size);
    operand.bind(args_, buffer.pointer());
    buffers_[operand.name] = std::move(buffer);
  }
}

// ------------------------------------------------------------------------------------------ data

void Case::fill_data() {
  const std::string& kind = spec_.fill;
  const uint64_t seed = spec_.data_seed;

  // Row numbers, so that a whole query or key can be special: batch, head and token.
  const auto row_of = [](const runmax_tensor& t, const int64_t* i) {
    int64_t row = 0;
    for (int d = 0; d < t.rank - 1; ++d) row = row * t.shape[d] + i[d];
    return static_cast<uint64_t>(row);
  };
  const auto token_of = [](const runmax_tensor& t, const int64_t* i) {
    return t.rank == 3 ? i[0] : i[2];
  };
  // Signs of a key, nearly orthogonal from key to key.
  const auto sign = [&](uint64_t row, int64_t d) {
    return random_word(seed ^ stream_of("sign"), row * 65537 + static_cast<uint64_t>(d)) >> 63
               ? 1.0
               : -1.0;
  };
  const auto counting = [&](const runmax_tensor& t, const int64_t* i) {
    const int64_t token = token_of(t, i), head = i[1], channel = i[t.rank - 1];
    return static_cast<double>(
               (token * 7 + channel * 3 + head * 5 + (t.rank == 4 ? i[0] * 11 : 0)) % 61) -
           20;
  };

  for (const char* name : {"q", "k", "v"}) {
    if (!has(name) || (spec_.v_in_k && name[0] == 'v')) continue;
    const runmax_tensor& t = buffer(name).tensor;
    const uint64_t stream = seed ^ stream_of(name);
    uint64_t counter = 0;
    const char which = name[0];
    fill(name, [&](const int64_t* i) -> double {
      const uint64_t n = counter++;
      if (kind == "normal") return random_normal(stream, n);
      if (kind == "huge") return random_normal(stream, n) * (which == 'v' ? 1 : 60);
      if (kind == "ones") return 1;
      if (kind == "hostile") {
        const double x = random_normal(stream, n);
        const uint64_t special = random_word(stream + 1, which == 'v' ? n : row_of(t, i)) % 16;
        if (which == 'q') return special == 0 ? 0 : special == 1 ? 30 * x : x;
        if (which == 'k') return special == 0 ? 20 * x : x;
        return special == 0 ? 100 * x : x;
      }
      if (kind == "nonfinite") {  // live NaN and inf: a few keys, values, and one query in 64
        const uint64_t word = random_word(stream + 1, which == 'v' ? n : row_of(t, i));
        const double bad[] = {std::nan(""), kInf, -kInf};
        const bool hit = which == 'v' ? word % 256 == 0 : word % 64 == 0 && i[t.rank - 1] == 0;
        return hit ? bad[word / 256 % 3] : random_normal(stream, n);
      }
      if (which == 'v') return counting(t, i);
      if (kind == "counting") return which == 'q' ? 0 : random_normal(stream, n);
      // onehot: each query points at one key of its sequence.
      if (which == 'k') return sign(row_of(t, i), i[t.rank - 1]);
      const runmax_tensor& k = problem_.k;
      const int64_t keys = t.rank == 3 ? k.shape[0] : k.shape[2];
      if (keys == 0 || spec_.kv_heads == 0) return 1;
      const int64_t group = std::max<int64_t>(1, spec_.q_heads / spec_.kv_heads);
      const int64_t head = std::min(i[1] / group, spec_.kv_heads - 1);
      int64_t target = random_below(stream + 1, row_of(t, i), keys);
      if (spec_.causal && t.rank == 4) {
        target = std::min(target, std::max<int64_t>(0, i[2] + spec_.kv_len - spec_.q_len));
      }
      const int64_t row = t.rank == 3 ? target * spec_.kv_heads + head
                                      : (i[0] * spec_.kv_heads + head) * keys + target;
      return 8 * sign(static_cast<uint64_t>(row), i[t.rank - 1]);
    });
  }

  const auto normal = [&](const char* name, double factor) {
    if (!has(name)) return;
    uint64_t counter = 0;
    const uint64_t stream = seed ^ stream_of(name);
    fill(name, [&](const int64_t*) { return factor * random_normal(stream, counter++); });
  };
  normal("sink", 2);
  normal("d_lse", 1);
  if (has("d_out")) {
    const uint64_t stream = seed ^ stream_of("d_out");
    const runmax_tensor& t = buffer("d_out").tensor;
    uint64_t counter = 0;
    fill("d_out", [&](const int64_t* i) -> double {
      const uint64_t n = counter++;
      if (kind == "ones") return 1;
      if (kind == "counting") return counting(t, i) / 16;
      const double x = random_normal(stream, n);
      if (kind == "nonfinite" && random_word(stream + 1, n) % 512 == 0)
        return n % 2 ? kInf : std::nan("");
      if (kind != "hostile") return x;
      // Rows of nothing, rows of much, single large elements.
      const uint64_t row = random_word(stream + 1, row_of(t, i)) % 16;
      const uint64_t special = random_word(stream + 2, n) % 16;
      return row == 0 ? 0 : (row == 1 ? 50 : 1) * (special == 0 ? 20 : 1) * x;
    });
  }
  normal("partial_out", 1);
  if (has("bias")) {
    const uint64_t stream = seed ^ stream_of("bias");
    const runmax_tensor& t = problem_.bias;
    uint64_t counter = 0;
    fill("bias", [&](const int64_t* i) -> double {
      const uint64_t n = counter++;
      if (kind == "hostile" &&
          (random_word(stream + 1, n) % 8 == 0 ||
           (t.shape[2] > 1 && random_word(stream + 2, row_of(t, i)) % 16 == 0))) {
        return -kInf;
      }
      return random_normal(stream, n) * (kind == "hostile" ? 5 : 1);
    });
  }
  if (has("mask")) {
    const uint64_t stream = seed ^ stream_of("mask");
    const runmax_tensor& t = problem_.mask;
    uint64_t counter = 0;
    fill("mask", [&](const int64_t* i) -> double {
      const uint64_t word = random_word(stream, counter++);
      const bool hidden_row = t.shape[2] > 1 && random_word(stream + 1, row_of(t, i)) % 16 == 0;
      if (hidden_row || word % 4 == 0) return 0;
      return static_cast<double>(1 + word % 254);  // any non-zero byte is true
    });
  }
  if (has("alibi_slopes")) {
    const int rank = problem_.alibi_slopes.rank;
    fill("alibi_slopes", [&](const int64_t* i) {
      return std::ldexp(1 + (rank == 2 ? 0.25 * static_cast<double>(i[0] % 4) : 0),
                        -1 - static_cast<int>(i[rank - 1] % 8));
    });
  }
  if (has("partial_lse")) {
    const uint64_t stream = seed ^ stream_of("partial_lse");
    uint64_t counter = 0;
    fill("partial_lse", [&](const int64_t*) -> double {
      const uint64_t n = counter++;
      return random_word(stream + 1, n) % 4 == 0 ? -kInf : 3 * random_normal(stream, n);
    });
  }

  const auto list = [&](const char* name, const PerSequence& given, auto&& draw) {
    if (!has(name)) return;
    fill(name, [&](const int64_t* i) {
      return static_cast<double>(given.values.empty() ? draw(i[0]) : given.values[i[0]]);
    });
  };
  const auto starts = [&](const char* name, bool q) {
    if (!has(name)) return;
    const std::vector<int64_t> values = seqlen_starts(spec_, q);
    fill(name, [&](const int64_t* i) { return static_cast<double>(values[i[0]]); });
  };
  starts("cu_seqlens_q", true);
  starts("cu_seqlens_kv", false);
  const auto room = [&](int64_t b, bool q) {
    if (!spec_.packed) return q ? spec_.q_len : spec_.kv_len;
    const std::vector<int64_t> values = seqlen_starts(spec_, q);
    return std::max<int64_t>(0, values[b + 1] - values[b]);
  };
  list("seqused_q", spec_.seqused_q,
       [&](int64_t b) { return draw_length(spec_, stream_of("seqused_q"), b, room(b, true)); });
  list("seqused_kv", spec_.seqused_kv,
       [&](int64_t b) { return draw_length(spec_, stream_of("seqused_kv"), b, room(b, false)); });
  list("prefix_len", spec_.prefix_len,
       [&](int64_t b) { return draw_length(spec_, stream_of("prefix_len"), b, room(b, false)); });
  list("diagonal_offset", spec_.diagonal_offset, [&](int64_t b) {
    return random_below(seed ^ stream_of("diagonal_offset"), b, spec_.q_len + spec_.kv_len + 1) -
           spec_.q_len;
  });

  // Segments grow along the sequence, at different places for q and kv; some meet no partner.
  const auto segments = [&](const char* name, bool q) {
    if (!has(name)) return;
    const int64_t length = q ? spec_.q_len : spec_.kv_len;
    const int64_t parts = q ? spec_.segments : spec_.segments + 1;
    fill(name, [&](const int64_t* i) {
      const int64_t token = spec_.packed ? i[0] : i[1];
      return static_cast<double>(token * parts / std::max<int64_t>(1, length));
    });
  };
  segments("segment_ids_q", true);
  segments("segment_ids_kv", false);

  if (has("block_index")) {
    const uint64_t stream = seed ^ stream_of("block_index");
    uint64_t counter = 0;
    // A packed row of blocks belongs to the sequence whose blocks it falls into.
    const auto kv_blocks = [&](const int64_t* i) {
      if (!spec_.packed) return ceil_div(spec_.kv_len, spec_.block_kv);
      int64_t first = 0;
      for (int64_t b = 0; b < spec_.batch; ++b) {
        first += ceil_div(room(b, true), spec_.block_q);
        if (i[1] < first) return ceil_div(room(b, false), spec_.block_kv);
      }
      return int64_t{0};
    };
    fill("block_index", [&](const int64_t* i) -> double {
      const uint64_t word = random_word(stream, counter++);
      const int64_t blocks = kv_blocks(i);
      if (word % 5 == 0 || blocks == 0) return -1 - static_cast<double>(word % 3);
      return static_cast<double>(word / 8 % static_cast<uint64_t>(blocks));
    });
  }
}

// ------------------------------------------------------------------------------------ visibility

int64_t Case::per_sequence(const char* name, int64_t b, int64_t absent) const {
  return has(name) ? static_cast<int64_t>(at(name, {b})) : absent;
}

int64_t Case::q_start(int64_t b) const { return per_sequence("cu_seqlens_q", b, 0); }
int64_t Case::kv_start(int64_t b) const { return per_sequence("cu_seqlens_kv", b, 0); }
int64_t Case::q_used(int64_t b) const {
  const int64_t room = spec_.packed ? q_start(b + 1) - q_start(b) : problem_.q.shape[2];
  return per_sequence("seqused_q", b, room);
}
int64_t Case::kv_used(int64_t b) const {
  const int64_t room = spec_.packed ? kv_start(b + 1) - kv_start(b) : problem_.k.shape[2];
  return per_sequence("seqused_kv", b, room);
}

bool Case::sees(int64_t b, int64_t h, int64_t i, int64_t j, bool with_bias) const {
  const int64_t q_used_b = q_used(b), kv_used_b = kv_used(b);
  if (i >= q_used_b || j >= kv_used_b) return false;
  const int64_t offset =
      per_sequence("diagonal_offset", b,
                   problem_.diagonal_alignment == RUNMAX_ALIGN_TOP_LEFT ? 0 : kv_used_b - q_used_b);
  const int64_t diagonal = i + offset;
  if ((problem_.present & RUNMAX_PRESENT_WINDOW_LEFT) && j < diagonal - problem_.window_left &&
      j >= problem_.sink_tokens) {
    return false;
  }
  int64_t right = std::numeric_limits<int64_t>::max() / 2;
  if (problem_.present & RUNMAX_PRESENT_WINDOW_RIGHT) right = problem_.window_right;
  if (problem_.flags & RUNMAX_CAUSAL) right = std::min<int64_t>(right, 0);
  if (j - diagonal > right && j >= per_sequence("prefix_len", b, 0)) return false;
  if (has("segment_ids_q")) {
    const double own =
        spec_.packed ? at("segment_ids_q", {q_start(b) + i}) : at("segment_ids_q", {b, i});
    const double key =
        spec_.packed ? at("segment_ids_kv", {kv_start(b) + j}) : at("segment_ids_kv", {b, j});
    if (own != key) return false;
  }
  const auto spread = [&](const char* name) {
    const runmax_tensor& t = buffer(name).tensor;
    const auto clip = [&](int d, int64_t x) { return t.shape[d] == 1 ? 0 : x; };
    return at(name, {clip(0, b), clip(1, h), clip(2, i), clip(3, j)});
  };
  if (has("mask") && spread("mask") == 0) return false;
  if (has("block_index")) {
    const runmax_tensor& t = problem_.block_index;
    const int64_t heads = t.shape[t.rank - 3];
    const int64_t head = heads == 1 ? 0 : h * heads / spec_.q_heads;
    int64_t row = i / problem_.block_q;
    if (spec_.packed) {
      for (int64_t a = 0; a < b; ++a)
        row += ceil_div(q_start(a + 1) - q_start(a), problem_.block_q);
    }
    bool selected = false;
    for (int64_t s = 0; s < t.shape[t.rank - 1] && !selected; ++s) {
      const double entry =
          spec_.packed ? at("block_index", {head, row, s}) : at("block_index", {b, head, row, s});
      selected = static_cast<int64_t>(entry) == j / problem_.block_kv;
    }
    if (!selected) return false;
  }
  return !with_bias || !has("bias") || spread("bias") != -kInf;
}

// ---------------------------------------------------------------------------------------- poison

void Case::poison_unused() {
  // A token is in use if any sequence that reads its storage uses it.
  const auto poison_tokens = [&](const char* name, bool q) {
    if (!has(name)) return;
    Buffer& b = mutable_buffer(name);
    const runmax_tensor& t = b.tensor;
    std::vector<bool> used;  // packed: by token; dense: by (batch, token)
    const int64_t tokens = spec_.packed ? t.shape[0] : t.shape[2];
    used.assign(static_cast<size_t>(spec_.packed ? tokens : t.shape[0] * tokens), false);
    for (int64_t s = 0; s < spec_.batch; ++s) {
      const int64_t start = spec_.packed ? (q ? q_start(s) : kv_start(s)) : 0;
      const int64_t count = std::min(q ? q_used(s) : kv_used(s), tokens - start);
      for (int64_t i = 0; i < count; ++i) {
        if (spec_.packed) {
          if (start + i >= 0) used[start + i] = true;
        } else if (t.stride[0] != 0) {
          used[s * tokens + i] = true;
        } else {
          for (int64_t other = 0; other < t.shape[0]; ++other) used[other * tokens + i] = true;
        }
      }
    }
    for_each_element(t, [&](const int64_t* i, int64_t offset) {
      const int64_t token = spec_.packed ? i[0] : i[0] * tokens + i[2];
      if (!used[token]) store_poison(spec_.poison, t.dtype, b.pointer(), offset);
    });
  };
  poison_tokens("q", true);
  poison_tokens("k", false);
  poison_tokens("v", false);
  if (has("q")) {
    poison_tokens("d_out", true);
    poison_d_lse();
  }
  if (has("partial_out")) {
    // A part without a visible key: its out counts for nothing, whatever it holds.
    Buffer& out = mutable_buffer("partial_out");
    const bool is_packed = spec_.packed;
    for_each_element(out.tensor, [&](const int64_t* i, int64_t offset) {
      const double value = is_packed ? at("partial_lse", {i[0], i[2], i[1]})
                                     : at("partial_lse", {i[0], i[1], i[2], i[3]});
      if (value == -kInf) store_poison(spec_.poison, out.tensor.dtype, out.pointer(), offset);
    });
  }
  // Bias of rows or keys that no sequence uses. (Mask bytes there stay as drawn: any is legal.)
  if (has("bias")) {
    Buffer& bias = mutable_buffer("bias");
    const runmax_tensor& t = bias.tensor;
    int64_t longest_q = 0, longest_kv = 0;
    for (int64_t b = 0; b < spec_.batch; ++b) {
      longest_q = std::max(longest_q, q_used(b));
      longest_kv = std::max(longest_kv, kv_used(b));
    }
    for_each_element(t, [&](const int64_t* i, int64_t offset) {
      const int64_t q_limit = t.shape[0] == 1 ? longest_q : q_used(i[0]);
      const int64_t kv_limit = t.shape[0] == 1 ? longest_kv : kv_used(i[0]);
      if (i[2] >= std::max<int64_t>(q_limit, 1) || i[3] >= std::max<int64_t>(kv_limit, 1)) {
        store_poison(spec_.poison, t.dtype, bias.pointer(), offset);
      }
    });
  }
}

// d_lse of rows of no sequence.
void Case::poison_d_lse() {
  if (!has("d_lse")) return;
  Buffer& d_lse = mutable_buffer("d_lse");
  for_each_element(d_lse.tensor, [&](const int64_t* i, int64_t offset) {
    bool used = !spec_.packed && i[2] < q_used(i[0]);
    for (int64_t b = 0; spec_.packed && b < spec_.batch; ++b) {
      used = used || (i[1] >= q_start(b) && i[1] < q_start(b) + q_used(b));
    }
    if (!used) store_poison(spec_.poison, d_lse.tensor.dtype, d_lse.pointer(), offset);
  });
}

void Case::poison_hidden() {
  if (!has("q") || spec_.q_heads == 0 || spec_.kv_heads == 0) return;
  const int64_t group = spec_.q_heads / spec_.kv_heads;
  // By element offset: some row sees the pair that reads it.
  std::map<std::string, std::vector<bool>> live;
  for (const char* name : {"q", "k", "v", "bias", "d_out", "d_lse"}) {
    // The d_lse of a row without keys is the sink's, if there is one.
    if (name == std::string_view("d_lse") && has("sink")) continue;
    if (has(name)) live[name].assign(static_cast<size_t>(buffer(name).storage_bytes), false);
  }
  const auto slot = [&](const char* name, std::initializer_list<int64_t> index) {
    const Buffer& b = buffer(name);
    int64_t offset = 0;
    int d = 0;
    for (int64_t x : index) offset += (b.tensor.shape[d] == 1 ? 0 : x) * b.tensor.stride[d], ++d;
    return offset * size_of(b.tensor.dtype) + b.origin - b.storage_begin;
  };
  for (int64_t b = 0; b < spec_.batch; ++b) {
    const int64_t q0 = q_start(b), k0 = kv_start(b);
    for (int64_t h = 0; h < spec_.q_heads; ++h) {
      const int64_t head = h / group;
      for (int64_t i = 0; i < q_used(b); ++i) {
        for (int64_t j = 0; j < kv_used(b); ++j) {
          if (has("bias") && sees(b, h, i, j, false))
            live["bias"][slot("bias", {b, h, i, j})] = true;
          if (!sees(b, h, i, j, true)) continue;
          if (spec_.packed) {
            live["q"][slot("q", {q0 + i, h, 0})] = true;
            if (has("d_out")) live["d_out"][slot("d_out", {q0 + i, h, 0})] = true;
            if (live.count("d_lse")) live["d_lse"][slot("d_lse", {h, q0 + i})] = true;
            live["k"][slot("k", {k0 + j, head, 0})] = true;
            live["v"][slot("v", {k0 + j, head, 0})] = true;
          } else {
            live["q"][slot("q", {b, h, i, 0})] = true;
            if (has("d_out")) live["d_out"][slot("d_out", {b, h, i, 0})] = true;
            if (live.count("d_lse")) live["d_lse"][slot("d_lse", {b, h, i})] = true;
            live["k"][slot("k", {b, head, j, 0})] = true;
            live["v"][slot("v", {b, head, j, 0})] = true;
          }
        }
      }
    }
  }
  for (const auto& entry : live) {
    const std::string& name = entry.first;
    const auto& seen = entry.second;
    Buffer& b = mutable_buffer(name);
    const bool has_channels = name != "bias" && name != "d_lse";
    const int64_t channel = !has_channels ? 0 : b.tensor.stride[b.tensor.rank - 1];
    const int64_t size = size_of(b.tensor.dtype);
    for_each_element(b.tensor, [&](const int64_t* i, int64_t offset) {
      const int64_t row = offset - i[b.tensor.rank - 1] * channel;
      if (!seen[row * size + b.origin - b.storage_begin]) {
        store_poison(spec_.poison, b.tensor.dtype, b.pointer(), offset);
      }
    });
  }
}

// ---------------------------------------------------------------------------------------- access

namespace {
int64_t offset_of(const runmax_tensor& tensor, std::initializer_list<int64_t> index) {
  int64_t offset = 0;
  int d = 0;
  for (int64_t i : index) {
    if (d >= tensor.rank || i < 0 || i >= tensor.shape[d]) {
      std::fprintf(stderr, "testing: index %lld is outside dimension %d\n",
                   static_cast<long long>(i), d);
      std::abort();
    }
    offset += i * tensor.stride[d++];
  }
  return offset;
}
}  // namespace

double Case::at(std::string_view name, Index index) const {
  const Buffer& b = buffer(name);
  return load(b.tensor.dtype, b.pointer(), offset_of(b.tensor, index));
}

void Case::set(std::string_view name, Index index, double value) {
  const Buffer& b = buffer(name);
  store(b.tensor.dtype, b.pointer(), offset_of(b.tensor, index), value);
}

void Case::fill(std::string_view name, const std::function<double(const int64_t*)>& value) {
  const Buffer& b = buffer(name);
  for_each_element(b.tensor, [&](const int64_t* index, int64_t offset) {
    store(b.tensor.dtype, b.pointer(), offset, value(index));
  });
}

void Case::fill(std::string_view name, double value) {
  fill(name, [value](const int64_t*) { return value; });
}

std::vector<double> Case::values(std::string_view name) const {
  const Buffer& b = buffer(name);
  std::vector<double> all;
  all.reserve(static_cast<size_t>(element_total(b.tensor)));
  for_each_element(b.tensor, [&](const int64_t*, int64_t offset) {
    all.push_back(load(b.tensor.dtype, b.pointer(), offset));
  });
  return all;
}

// ---------------------------------------------------------------------------------------- damage

void Case::seal() {
  for (const auto& [name, b] : buffers_) {
    if (b.output) {
      fill_pattern(b.block.get(), b.block_bytes, output_pattern(b.tensor.dtype),
                   size_of(b.tensor.dtype));
    } else {
      seals_[name] = hash_bytes(b.block.get(), b.block_bytes);
    }
  }
}

std::string Case::damage() const {
  for (const auto& entry : buffers_) {
    const std::string& name = entry.first;
    const Buffer& b = entry.second;
    if (!b.output) {
      if (hash_bytes(b.block.get(), b.block_bytes) != seals_.at(name)) {
        return name + ": an input or its guard zone was written";
      }
      continue;
    }
    const int64_t size = size_of(b.tensor.dtype);
    const uint8_t* pattern = output_pattern(b.tensor.dtype);
    const auto intact = [&](const std::byte* from, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += size) {
        if (std::memcmp(from + i, pattern, static_cast<size_t>(size)) != 0) return false;
      }
      return true;
    };
    const int64_t storage_end = b.storage_begin + b.storage_bytes;
    if (!intact(b.block.get(), 0, b.storage_begin))
      return name + ": the guard before it was written";
    if (!intact(b.block.get(), storage_end, b.block_bytes)) {
      return name + ": the guard after it was written";
    }
    if (element_total(b.tensor) * size == b.storage_bytes) continue;
    std::vector<std::byte> copy(b.block.get() + b.storage_begin, b.block.get() + storage_end);
    for_each_element(b.tensor, [&](const int64_t*, int64_t offset) {
      std::memcpy(copy.data() + b.origin - b.storage_begin + offset * size, pattern,
                  static_cast<size_t>(size));
    });
    if (!intact(copy.data(), 0, b.storage_bytes))
      return name + ": a gap between elements was written";
  }
  return "";
}

void forbid_memory(const void* begin, size_t bytes, bool forbid) {
#ifdef RUNMAX_TESTING_ASAN
  forbid ? __asan_poison_memory_region(begin, bytes) : __asan_unpoison_memory_region(begin, bytes);
#else
  (void)begin, (void)bytes, (void)forbid;
#endif
}

void Case::forbid_guards(bool forbid) const {
  for (const auto& [name, b] : buffers_) {
    const int64_t end = b.storage_begin + b.storage_bytes;
    forbid_memory(b.block.get(), static_cast<size_t>(b.storage_begin), forbid);
    forbid_memory(b.block.get() + end, static_cast<size_t>(b.block_bytes - end), forbid);
  }
}

bool Case::is_unwritten(const Buffer& b, int64_t element_offset) const {
  const int64_t size = size_of(b.tensor.dtype);
  return std::memcmp(static_cast<const std::byte*>(b.pointer()) + element_offset * size,
                     output_pattern(b.tensor.dtype), static_cast<size_t>(size)) == 0;
}

int64_t Case::unwritten(std::string_view name) const {
  const Buffer& b = buffer(name);
  int64_t count = 0;
  for_each_element(b.tensor,
                   [&](const int64_t*, int64_t offset) { count += is_unwritten(b, offset); });
  return count;
}

// ----------------------------------------------------------------------------------------- memory

void* DeviceMemory::alloc(size_t bytes) {
  void* pointer = nullptr;
  const runmax_status status = runmax_device_alloc(device_, bytes, &pointer);
  if (status == RUNMAX_OUT_OF_MEMORY) throw std::bad_alloc();
  if (status != RUNMAX_OK) throw std::runtime_error(runmax_last_error());
  return pointer;
}

void DeviceMemory::free(void* pointer) { runmax_device_free(device_, pointer); }

void DeviceMemory::copy_in(void* to, const void* from_host, size_t bytes) {
  if (runmax_device_copy(device_, to, from_host, bytes, RUNMAX_COPY_TO_DEVICE, nullptr) !=
          RUNMAX_OK ||
      runmax_device_sync(device_, nullptr) != RUNMAX_OK) {
    throw std::runtime_error(runmax_last_error());
  }
}

void DeviceMemory::copy_out(void* to_host, const void* from, size_t bytes) {
  if (runmax_device_copy(device_, to_host, from, bytes, RUNMAX_COPY_FROM_DEVICE, nullptr) !=
          RUNMAX_OK ||
      runmax_device_sync(device_, nullptr) != RUNMAX_OK) {
    throw std::runtime_error(runmax_last_error());
  }
}

namespace {

// Larger operands, which reach far beyond their elements, are copied row by row.
constexpr int64_t kWholeExtent = int64_t{256} << 20;

std::byte* host_pointer(const Operand& operand, const runmax_args& args) {
  // Where bind() writes is where the pointer lies.
  runmax_args probe{};
  std::byte* marker = reinterpret_cast<std::byte*>(~uintptr_t{0});
  operand.bind(probe, marker);
  for (size_t at = 0; at + sizeof(void*) <= sizeof probe; at += sizeof(void*)) {
    std::byte* found;
    std::memcpy(&found, reinterpret_cast<const std::byte*>(&probe) + at, sizeof found);
    if (found != marker) continue;
    std::memcpy(&found, reinterpret_cast<const std::byte*>(&args) + at, sizeof found);
    return found;
  }
  return nullptr;
}

// Bytes [begin, end) that the elements cover, from element [0, ..., 0].
std::pair<int64_t, int64_t> extent_of(const runmax_tensor& tensor) {
  int64_t begin = 0, end = 1;
  for (int d = 0; d < tensor.rank; ++d) {
    if (tensor.shape[d] == 0) return {0, 0};
    const int64_t reach = (tensor.shape[d] - 1) * tensor.stride[d];
    (reach < 0 ? begin : end) += reach;
  }
  return {begin * size_of(tensor.dtype), end * size_of(tensor.dtype)};
}

// Calls visit(byte offset, bytes) for runs of neighbouring elements.
template <class Visit>
void for_each_run(const runmax_tensor& tensor, Visit&& visit) {
  const int64_t size = size_of(tensor.dtype);
  int64_t begin = 0, end = 0;
  for_each_element(tensor, [&](const int64_t*, int64_t offset) {
    if (offset * size != end) {
      if (end > begin) visit(begin, end - begin);
      begin = offset * size;
    }
    end = (offset + 1) * size;
  });
  if (end > begin) visit(begin, end - begin);
}

}  // namespace

Placement::Placement(Case& source, Memory& memory) : memory_(memory), args_(source.args()) {
  for (const Operand& operand : operands()) {
    if (!source.has(operand.name)) continue;
    const Buffer& b = source.buffer(operand.name);
    std::byte* host = host_pointer(operand, source.args());
    if (host != b.pointer()) {
      place(operand, source.problem(), host);
      continue;
    }
    Block* copy = nullptr;
    for (Block& known : blocks_) {
      if (known.block == b.block) copy = &known;
    }
    if (copy == nullptr) {
      blocks_.push_back({b.block, b.block_bytes, allocate(b.block_bytes)});
      copy = &blocks_.back();
      memory.copy_in(copy->pointer, b.block.get(), static_cast<size_t>(b.block_bytes));
    }
    operand.bind(args_, copy->pointer + b.origin);
  }
  place_random_pointers();
}

Placement::Placement(const runmax_problem& problem, const runmax_args& args, Memory& memory)
    : memory_(memory), args_(args) {
  for (const Operand& operand : operands()) {
    if ((problem.*operand.tensor).dtype == RUNMAX_DTYPE_NONE) continue;
    place(operand, problem, host_pointer(operand, args));
  }
  place_random_pointers();
}

Placement::~Placement() {
  for (void* allocation : allocations_) memory_.free(allocation);
}

// Aligned like the blocks of a case.
std::byte* Placement::allocate(int64_t bytes) {
  allocations_.push_back(memory_.alloc(static_cast<size_t>(bytes + kBlockAlignment)));
  const auto address = reinterpret_cast<uintptr_t>(allocations_.back());
  const uintptr_t aligned = (address + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
  return static_cast<std::byte*>(allocations_.back()) + (aligned - address);
}

void Placement::place(const Operand& operand, const runmax_problem& problem, std::byte* host) {
  const runmax_tensor& tensor = problem.*operand.tensor;
  const auto [begin, end] = extent_of(tensor);
  if (host == nullptr || begin == end) return;
  std::byte* first = host + begin;
  const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(first) % kBlockAlignment);
  std::byte* to = allocate(past + end - begin) + past;
  if (end - begin <= kWholeExtent) {
    memory_.copy_in(to, first, static_cast<size_t>(end - begin));
  } else {
    for_each_run(tensor, [&, shift = begin](int64_t offset, int64_t bytes) {
      memory_.copy_in(to - shift + offset, host + offset, static_cast<size_t>(bytes));
    });
  }
  extents_.push_back({&tensor, operand.is_output(problem), host, to - begin});
  operand.bind(args_, to - begin);
}

void Placement::place_random_pointers() {
  for (const uint64_t** pointer : {&args_.seed_pointer, &args_.offset_pointer}) {
    if (*pointer == nullptr) continue;
    std::byte* to = allocate(sizeof **pointer);
    memory_.copy_in(to, *pointer, sizeof **pointer);
    *pointer = reinterpret_cast<const uint64_t*>(to);
  }
}

void Placement::refresh() {
  for (const Block& copy : blocks_) {
    memory_.copy_in(copy.pointer, copy.block.get(), static_cast<size_t>(copy.bytes));
  }
}

void Placement::fetch() {
  for (const Block& copy : blocks_) {
    memory_.copy_out(copy.block.get(), copy.pointer, static_cast<size_t>(copy.bytes));
  }
  for (const Extent& extent : extents_) {
    if (!extent.output) continue;
    const auto [begin, end] = extent_of(*extent.tensor);
    std::vector<std::byte> image(static_cast<size_t>(end - begin));
    memory_.copy_out(image.data(), extent.pointer + begin, image.size());
    for_each_run(*extent.tensor, [&, shift = begin](int64_t offset, int64_t bytes) {
      std::memcpy(extent.host + offset, image.data() + (offset - shift),
                  static_cast<size_t>(bytes));
    });
  }
}

}  // namespace runmax::testing
