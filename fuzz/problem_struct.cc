// Any bytes as a runmax_problem and its arguments: drawn as a small problem, then patched at any
// field. What validate accepts is given buffers of exactly the declared extent; then the library
// must answer consistently, write all of its outputs and nothing else, and be right.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bytes_file.h"
#include "testing/case.h"
#include "testing/element.h"
#include "testing/gates.h"
#include "testing/run.h"

using runmax::fuzz::require;
using namespace runmax::testing;

namespace {

// The input, read front to back; zeros after its end.
class Source {
 public:
  Source(const uint8_t* data, size_t size) : data_(data), end_(data + size) {}
  bool empty() const { return data_ == end_; }
  uint8_t byte() { return empty() ? 0 : *data_++; }
  int64_t below(int64_t bound) { return byte() % bound; }
  bool flag() { return (byte() & 1) != 0; }
  uint64_t word() {
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return value;
  }

 private:
  const uint8_t* data_;
  const uint8_t* end_;
};

constexpr std::byte kUnwritten{0xff};        // a NaN that no kernel makes, in every type
constexpr int64_t kMaxElements = 4096;       // of a tensor's storage
constexpr int64_t kMaxWork = 1 << 21;        // multiplications
constexpr size_t kMaxWorkspace = 64u << 20;  // bytes

std::string broadcast(Source& in) {
  const uint8_t bits = in.byte();
  std::string pattern;
  if ((bits & 0x30) != 0) return pattern;  // absent
  for (int d = 0; d < 4; ++d) pattern += bits >> d & 1 ? '1' : "bhqk"[d];
  return pattern;
}

ProblemSpec draw_spec(Source& in) {
  constexpr int64_t kTypes[] = {RUNMAX_F32, RUNMAX_F64, RUNMAX_BF16, RUNMAX_F16};
  constexpr const char* kLayouts[] = {"bhsd", "bshd", "bhds", "padded", "strided", "negative"};
  ProblemSpec s;
  s.direction = in.below(8) == 7 ? RUNMAX_MERGE : RUNMAX_FORWARD;
  s.partials = in.below(4);
  s.dtype = kTypes[in.below(4)];
  s.out_dtype = in.flag() ? int64_t{RUNMAX_F32} : s.dtype;
  s.bias_dtype = in.flag() ? int64_t{RUNMAX_F32} : s.dtype;
  s.batch = in.below(4);
  s.kv_heads = 1 + in.below(2);
  s.q_heads = s.kv_heads * (1 + in.below(3));
  s.q_len = in.below(40);
  s.kv_len = in.below(70);
  s.head_dim = 1 + in.below(20);
  s.head_dim_v = 1 + in.below(20);
  s.layout = kLayouts[in.below(6)];
  const uint64_t options = in.word();
  const auto has = [&](int bit) { return (options >> bit & 1) != 0; };
  const bool merge = s.direction == RUNMAX_MERGE;
  s.no_lse = has(0) && !merge;
  if (merge) return s;
  s.causal = has(1);
  s.align = has(2);
  if (has(3)) s.window_left = in.below(70);
  if (has(4)) s.window_right = in.below(70);
  s.sink_tokens = has(5) ? in.below(5) : 0;
  s.softcap = has(6) ? 5 : 0;
  s.sink = has(7);
  s.lse_lo = has(8) && !s.no_lse;
  s.keep_unused = has(9);
  s.batch_invariant = has(10);
  s.seqused_q.present = has(11);
  s.seqused_kv.present = has(12);
  s.prefix_len.present = has(13);
  s.diagonal_offset.present = has(14);
  s.segments = has(15) ? 2 : 0;
  s.packed = has(16);
  s.dropout = has(17) ? 0.25 : 0;
  s.scale_given = has(18);
  s.scale = has(18) ? 0.25 * static_cast<double>(in.below(9) - 4) : 0;
  if (has(19)) s.alibi = has(20) ? "h" : "bh";
  if (has(22)) {
    s.block_q = 1 + in.below(20);
    s.block_kv = 1 + in.below(20);
    s.block_heads = has(23) ? "1" : has(24) ? "kv" : "q";
  }
  if (has(25) && !s.batch_invariant) s.num_splits = in.below(9);
  s.data_seed = 1 + static_cast<uint64_t>(in.byte());
  s.bias = broadcast(in);
  s.mask = broadcast(in);
  return s;
}

// Overwrites a field (or part of one) with small, large or arbitrary numbers.
void patch(Source& in, void* object, size_t size) {
  const size_t at = (static_cast<size_t>(in.byte()) << 8 | in.byte()) % (size / 4) * 4;
  const size_t width = std::min<size_t>(in.flag() ? 4 : 8, size - at);
  uint64_t value = 0;
  switch (in.below(4)) {
    case 0:
      value = in.byte();
      break;
    case 1:
      value = ~static_cast<uint64_t>(in.byte());
      break;
    case 2:
      value = uint64_t{1} << in.below(64);
      break;
    default:
      value = in.word();
  }
  std::memcpy(static_cast<char*>(object) + at, &value, width);
}

struct Extent {
  int64_t low = 0, high = -1;  // element offsets; none if high < low
  int64_t elements = 0;
};

Extent extent_of(const runmax_tensor& t) {
  Extent e{0, 0, 1};
  for (int d = 0; d < t.rank; ++d) {
    e.elements *= t.shape[d];
    if (e.elements == 0) return {};
    if (e.elements > kMaxElements) return e;
    // validate keeps the whole extent within 2^60 bytes
    const int64_t reach = t.shape[d] < 2 ? 0 : (t.shape[d] - 1) * t.stride[d];
    (reach < 0 ? e.low : e.high) += reach;
  }
  return e;
}

bool small(const runmax_problem& p) {
  for (const Operand& operand : operands()) {
    const runmax_tensor& t = p.*operand.tensor;
    if (t.dtype == RUNMAX_DTYPE_NONE) continue;
    const Extent e = extent_of(t);
    if (e.elements > kMaxElements || e.high - e.low >= kMaxElements) return false;
    if (t.min_alignment > 4096) return false;
    // No elements, but loops over the other dimensions.
    for (int d = 0; d < t.rank; ++d) {
      if (t.shape[d] > kMaxElements) return false;
    }
  }
  if (p.op == RUNMAX_MERGE) return true;
  const bool packed = p.q.rank == 3;
  const int64_t rows = packed ? p.q.shape[0] : p.q.shape[0] * p.q.shape[2];
  const int64_t keys = packed ? p.k.shape[0] : p.k.shape[2];
  const int64_t dims = p.q.shape[p.q.rank - 1] + p.v.shape[p.v.rank - 1];
  return p.q.shape[0] * p.q.shape[1] <= kMaxElements && rows * p.q.shape[1] <= kMaxElements &&
         rows * p.q.shape[1] * keys * std::max<int64_t>(dims, 1) <= kMaxWork;
}

// Storage of one operand: exactly its extent, on the heap, so that sanitizers see a step beyond.
struct Storage {
  const Operand* operand;
  const runmax_tensor* tensor;
  Extent extent;
  std::byte* block = nullptr;
  size_t bytes = 0;
  std::vector<std::byte> before;

  Storage(const Operand& operand, const runmax_tensor& tensor)
      : operand(&operand), tensor(&tensor), extent(extent_of(tensor)) {
    const auto size = static_cast<size_t>(size_of(tensor.dtype));
    if (extent.elements == 0) return;
    bytes = static_cast<size_t>(extent.high - extent.low + 1) * size;
    // Element [0, ..., 0] lies on the promised alignment.
    const size_t alignment = std::max<size_t>(static_cast<size_t>(tensor.min_alignment), size);
    const size_t origin = static_cast<size_t>(-extent.low) * size;
    lead_ = (alignment - origin % alignment) % alignment;
    allocation_ = ::operator new (lead_ + bytes, std::align_val_t{std::max<size_t>(alignment, 16)});
    block = static_cast<std::byte*>(allocation_) + lead_;
    alignment_ = std::max<size_t>(alignment, 16);
    std::memset(block, 0xff, bytes);
  }
  ~Storage() {
    if (allocation_ != nullptr) ::operator delete (allocation_, std::align_val_t{alignment_});
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* origin() const {
    if (block == nullptr) return nullptr;
    return block - extent.low * size_of(tensor->dtype);
  }

 private:
  void* allocation_ = nullptr;
  size_t alignment_ = 16;
  size_t lead_ = 0;
};

double value_of(Source& in, const Operand& operand, const runmax_tensor& t, bool wild) {
  const uint8_t byte = in.byte();
  if (t.dtype == RUNMAX_BOOL) return byte % 3;
  if (t.dtype == RUNMAX_I32) {
    if (wild && byte > 250) return byte == 251 ? INT32_MIN : byte == 252 ? INT32_MAX : -1;
    return std::string_view(operand.name) == "block_index" ? byte % 12 - 2 : byte % 24;
  }
  if (wild && byte > 250) {
    constexpr double kSpecial[] = {__builtin_nan(""), __builtin_inf(), -__builtin_inf(), 1e30,
                                   -0.0};
    return kSpecial[byte - 251];
  }
  return (byte - 125) / 32.0;
}

// Often what the library accepts: lengths that do not fall and fit.
void fill(Source& in, Storage& s, const runmax_problem& p, bool wild) {
  if (s.extent.elements == 0) return;
  const std::string_view name = s.operand->name;
  const bool starts = name == "cu_seqlens_q" || name == "cu_seqlens_kv";
  int64_t at = 0;
  const int64_t total = name == "cu_seqlens_q" ? p.q.shape[0] : p.k.shape[0];
  for_each_element(*s.tensor, [&](const int64_t* index, int64_t offset) {
    double value = value_of(in, *s.operand, *s.tensor, wild);
    if (starts && !(wild && in.byte() > 240)) {
      if (index[0] > 0) at = std::min(total, at + static_cast<int64_t>(std::max(value, 0.0)));
      value = static_cast<double>(at);
    }
    store(s.tensor->dtype, s.origin(), offset, value);
  });
}

runmax_device* device() {
  static runmax_device* instance = [] {
    runmax_device_options options{};
    options.struct_size = sizeof options;
    options.max_threads = 2;
    runmax_device* made = nullptr;
    require(runmax_device_create(&options, &made) == RUNMAX_OK);
    return made;
  }();
  return instance;
}

void require_message(runmax_status status) {
  const std::string text = runmax_last_error();
  require(status == RUNMAX_INVALID_ARGUMENT || status == RUNMAX_UNSUPPORTED);
  const std::string field = runmax_last_error_field();
  require(!field.empty() && text.rfind(field + ": ", 0) == 0);
  require(status == RUNMAX_UNSUPPORTED || text.find('\n') == std::string::npos);
}

// Elements written, and every byte between them left alone.
void require_written(const Storage& s, bool all, bool none) {
  const auto size = static_cast<size_t>(size_of(s.tensor->dtype));
  std::vector<bool> declared(s.bytes);
  if (s.extent.elements == 0) return;
  for_each_element(*s.tensor, [&](const int64_t*, int64_t offset) {
    const auto* e = static_cast<const std::byte*>(s.origin()) + offset * static_cast<int64_t>(size);
    const size_t at = static_cast<size_t>(e - s.block);
    bool same = true;
    for (size_t i = 0; i < size; ++i) {
      declared[at + i] = true;
      same = same && e[i] == kUnwritten;
    }
    if (all && same) std::fprintf(stderr, "%s: an element was not written\n", s.operand->name);
    if (none && !same) std::fprintf(stderr, "%s: written by a refused call\n", s.operand->name);
    require(!(all && same) && !(none && !same));
  });
  for (size_t i = 0; i < s.bytes; ++i) require(declared[i] || s.block[i] == kUnwritten);
}

void run(Source& in, const runmax_problem& problem, runmax_plan* plan) {
  const bool merge = problem.op == RUNMAX_MERGE;
  const bool wild = in.flag();
  runmax_args args{};
  args.struct_size = sizeof args;
  std::vector<std::unique_ptr<Storage>> storages;
  for (const Operand& operand : operands()) {
    const runmax_tensor& tensor = problem.*operand.tensor;
    if (tensor.dtype == RUNMAX_DTYPE_NONE) continue;
    storages.push_back(std::make_unique<Storage>(operand, tensor));
    Storage& s = *storages.back();
    operand.bind(args, s.origin());
    if (operand.is_output(problem)) continue;
    fill(in, s, problem, wild);
    s.before.assign(s.block, s.block + s.bytes);
  }
  const uint64_t seed = in.byte(), offset = in.byte();
  if (in.flag()) {
    args.seed = seed;
    args.offset = offset;
  } else {
    args.seed_pointer = &seed;
    args.offset_pointer = &offset;
  }
  // Sometimes arguments that must be refused.
  if (in.below(16) == 15) args.struct_size = static_cast<uint32_t>(in.word() % (sizeof args + 1));
  if (in.below(16) == 15 && !storages.empty()) {
    storages[in.byte() % storages.size()]->operand->bind(args, nullptr);
  }
  if (in.below(16) == 15) args.reserved = 1;

  const runmax_status checked = runmax_check_args(plan, &args, nullptr);
  if (checked != RUNMAX_OK) require_message(checked);
  runmax_status status;
  if (merge) {
    status = runmax_merge(device(), &problem, &args, nullptr);
  } else {
    const size_t bytes = runmax_plan_workspace_size(plan);
    if (bytes > kMaxWorkspace) return;
    auto* workspace = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64}));
    std::memset(workspace, 0xff, bytes);
    status = runmax_execute(plan, &args, workspace, bytes, nullptr);
    ::operator delete (workspace, std::align_val_t{64});
  }
  require(status == checked);
  if (status != RUNMAX_OK) require_message(status);
  for (const auto& s : storages) {
    if (!s->operand->is_output(problem)) {
      require(s->bytes == 0 || std::memcmp(s->before.data(), s->block, s->bytes) == 0);
    } else {
      const bool keep = (problem.flags & RUNMAX_KEEP_UNUSED) != 0;
      require_written(*s, status == RUNMAX_OK && !keep, status != RUNMAX_OK);
    }
  }
  if (status != RUNMAX_OK) return;
  const Comparison result = compare_all(problem, args, expected(problem, args));
  if (!result.passed) std::fprintf(stderr, "%s\n", result.message.c_str());
  require(result.passed);
  if (merge) return;
  runmax_plan_info info{};
  info.struct_size = sizeof info;
  require(runmax_plan_count(plan, &args, &info) == RUNMAX_OK);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Source in(data, size);
  const ProblemSpec spec = draw_spec(in);
  runmax_problem problem = make_problem(spec);
  for (int64_t n = in.below(5); n > 0; --n) {
    const uint32_t struct_size = problem.struct_size;
    patch(in, &problem, sizeof problem);
    if (in.below(8) != 7) problem.struct_size = struct_size;
  }
  constexpr const char* kKernels[] = {nullptr, nullptr, nullptr, "", "nonsense"};
  problem.kernel = kKernels[in.below(5)];

  // A struct of exactly the size that it says, so that reading beyond it shows.
  problem.struct_size = std::min<uint32_t>(problem.struct_size, sizeof problem + 64);
  const size_t room = std::max<size_t>(problem.struct_size, sizeof problem.struct_size);
  std::vector<uint64_t> exact((room + 7) / 8);
  std::memcpy(exact.data(), &problem, std::min(room, sizeof problem));
  const auto* caller = reinterpret_cast<const runmax_problem*>(exact.data());
  const runmax_status status = runmax_validate(caller);
  runmax_plan* raw = nullptr;
  if (status != RUNMAX_OK) {
    require_message(status);
    require(runmax_plan_create(caller, device(), &raw) == status && raw == nullptr);
    require(runmax_supports(caller, device()) == status);
    return 0;
  }
  // What a shorter struct left out is zero.
  runmax_problem full{};
  std::memcpy(&full, exact.data(), std::min(room, sizeof full));
  full.struct_size = sizeof full;
  const runmax_status planned = runmax_plan_create(caller, device(), &raw);
  const std::unique_ptr<runmax_plan, decltype(&runmax_plan_destroy)> plan(raw, runmax_plan_destroy);
  if (planned != RUNMAX_OK) {
    require_message(planned);
    require(runmax_supports(caller, device()) == planned);
    return 0;
  }
  require(runmax_plan_explain(plan.get())[0] != '\0');
  if (full.op == RUNMAX_BACKWARD || !small(full)) return 0;
  runmax_plan_info info{};
  info.struct_size = sizeof info;
  require(runmax_plan_get_info(plan.get(), &info) == RUNMAX_OK);
  run(in, full, plan.get());
  return 0;
}
