#include "request.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "error.h"
#include "npy.h"
#include "safetensors.h"
#include "testing/case.h"

namespace runmax::cli {
namespace {

constexpr size_t kPiece = size_t{4} << 20;

// Small F32 vectors that an F64 problem wants in F64; files may hold either.
bool may_widen(std::string_view name) {
  return name == "sink" || name == "alibi_slopes" || name == "d_lse";
}

// q, k, v, out and their gradients: the tensors that --layout is about.
bool has_layout(std::string_view name) {
  static const std::set<std::string_view> names = {"q",     "k",   "v",   "out",
                                                   "d_out", "d_q", "d_k", "d_v"};
  return names.count(name) != 0;
}

const testing::Operand& operand_named(std::string_view name) {
  const auto& all = testing::operands();
  return *std::find_if(all.begin(), all.end(),
                       [&](const testing::Operand& each) { return name == each.name; });
}

runmax_dtype statistics_dtype(runmax_dtype q) { return q == RUNMAX_F64 ? RUNMAX_F64 : RUNMAX_F32; }

}  // namespace

std::vector<FileTensor> open_inputs(const Options& options) {
  std::vector<FileTensor> inputs;
  if (!options.in.empty()) {
    inputs = read_safetensors(std::make_shared<const InputFile>("IN", options.in));
  } else {
    for (const char* name : kInputTensors) {
      const auto it = options.npy_inputs.find(name);
      if (it == options.npy_inputs.end()) continue;
      inputs.push_back(
          read_npy(std::make_shared<const InputFile>(flag_of(name), it->second), name));
    }
  }
  for (const FileTensor& input : inputs) {
    const bool known = std::any_of(kInputTensors.begin(), kInputTensors.end(),
                                   [&](const char* name) { return input.name == name; });
    if (!known) {
      fail(fmt::format("IN.{}", printable(input.name)), "is an unknown tensor, must be one of {}",
           fmt::join(kInputTensors, ", "));
    }
    if (input.dtype == RUNMAX_DTYPE_NONE) {
      fail(input.name + ".dtype",
           "is a type without a use here, must be F32, F64, BF16, F16, I32 "
           "or BOOL");
    }
  }
  return inputs;
}

Request::Request(const Options& options, std::vector<FileTensor> inputs)
    : options_(options), inputs_(std::move(inputs)) {
  for (const char* name : {"q", "k", "v"}) {
    if (find(name) == nullptr)
      fail(name, "is missing in {}, must be there", options_.in.empty() ? "the flags" : "IN");
  }
  packed_ = find("cu_seqlens_q") != nullptr || find("cu_seqlens_kv") != nullptr;
  if (packed_ && options_.layout != Layout::kUnspecified && options_.layout != Layout::kThd) {
    fail("--layout", "is given with cu_seqlens, must be thd or left out");
  }
  if (!packed_ && options_.layout == Layout::kThd) {
    fail("--layout", "is thd, must be bhsd or bshd without cu_seqlens_q and cu_seqlens_kv");
  }
  swaps_heads_ = options_.layout == Layout::kBshd;
  wants_backward_ = find("d_out") != nullptr || find("d_lse") != nullptr || options_.backward;

  set_flags();
  add_inputs();
  add_outputs();
  require(runmax_validate(&forward_));
  if (wants_backward_) require(runmax_validate(&backward_));
}

const FileTensor* Request::find(const std::string& name) const {
  for (const FileTensor& input : inputs_) {
    if (input.name == name) return &input;
  }
  return nullptr;
}

void Request::set_flags() {
  runmax_problem& problem = forward_;
  problem.struct_size = sizeof problem;
  problem.op = RUNMAX_FORWARD;
  if (options_.scale) {
    problem.present |= RUNMAX_PRESENT_SCALE;
    problem.scale = *options_.scale;
  }
  if (options_.window_left) {
    problem.present |= RUNMAX_PRESENT_WINDOW_LEFT;
    problem.window_left = *options_.window_left;
  }
  if (options_.window_right) {
    problem.present |= RUNMAX_PRESENT_WINDOW_RIGHT;
    problem.window_right = *options_.window_right;
  }
  if (options_.causal) problem.flags |= RUNMAX_CAUSAL;
  if (options_.deterministic) problem.flags |= RUNMAX_DETERMINISTIC;
  if (options_.batch_invariant) problem.flags |= RUNMAX_BATCH_INVARIANT;
  problem.softcap = options_.softcap;
  problem.dropout = options_.dropout;
  problem.sink_tokens = options_.sink_tokens;
  problem.block_q = options_.block_q;
  problem.block_kv = options_.block_kv;
  problem.diagonal_alignment = options_.diagonal_alignment;
  problem.kernel = options_.kernel.empty() ? nullptr : options_.kernel.c_str();
  args_.struct_size = sizeof args_;
  args_.seed = options_.seed;
  args_.offset = options_.offset;
}

// The file's tensor as the library wants it: [batch, heads, len, dim] for the layout tensors, rank
// 4 for what broadcasts.
runmax_tensor Request::describe(const std::string& name, runmax_dtype dtype,
                                const std::vector<int64_t>& file_shape, bool fortran_order) const {
  std::vector<int64_t> shape = file_shape;
  const bool broadcasts = name == "bias" || name == "mask" || name == "d_bias";
  const size_t rank = has_layout(name) ? (packed_ ? 3 : 4) : broadcasts ? 4 : shape.size();
  if (has_layout(name) && shape.size() != rank) {
    const char* order = packed_        ? "[total, heads, dim]"
                        : swaps_heads_ ? "[batch, len, heads, dim]"
                                       : "[batch, heads, len, dim]";
    fail(name + ".shape", "is {}, must be {}", shape_text(shape), order);
  }
  if (broadcasts && shape.size() > rank) {
    fail(name + ".shape", "is {}, must be broadcastable to [batch, q_heads, q_len, kv_len]",
         shape_text(shape));
  }
  if (rank < 1 || rank > RUNMAX_MAX_RANK) {
    fail(name + ".shape", "has {} dimensions, must have 1 to {}", rank, RUNMAX_MAX_RANK);
  }

  // Strides of the file's order; of an empty tensor they mean nothing (and could overflow).
  std::vector<int64_t> stride(shape.size(), 1);
  if (std::find(shape.begin(), shape.end(), 0) == shape.end()) {
    int64_t step = 1;
    for (size_t i = 0; i < shape.size(); ++i) {
      const size_t d = fortran_order ? i : shape.size() - 1 - i;
      stride[d] = step;
      step *= shape[d];
    }
  }
  if (broadcasts) {
    shape.insert(shape.begin(), rank - shape.size(), 1);
    stride.insert(stride.begin(), rank - stride.size(), 1);
  }
  if (has_layout(name) && swaps_heads_) {
    std::swap(shape[1], shape[2]);
    std::swap(stride[1], stride[2]);
  }

  runmax_tensor tensor{};
  tensor.dtype = dtype;
  tensor.rank = static_cast<int32_t>(rank);
  std::copy(shape.begin(), shape.end(), tensor.shape);
  std::copy(stride.begin(), stride.end(), tensor.stride);
  tensor.min_alignment = RUNMAX_WORKSPACE_ALIGNMENT;  // what runmax_device_alloc gives
  return tensor;
}

void Request::add_inputs() {
  const bool wide = find("q")->dtype == RUNMAX_F64;
  for (const FileTensor& input : inputs_) {
    const runmax_dtype dtype =
        wide && may_widen(input.name) && input.dtype == RUNMAX_F32 ? RUNMAX_F64 : input.dtype;
    Operand& operand = operands_[input.name];
    operand.source = &input;
    operand.file_shape = input.shape;
    operand.tensor = describe(input.name, dtype, input.shape, input.fortran_order);
    const bool upstream = input.name == "d_out" || input.name == "d_lse";
    if (!upstream) forward_.*operand_named(input.name).tensor = operand.tensor;
  }
}

void Request::add_output(const std::string& name, runmax_dtype dtype,
                         std::vector<int64_t> file_shape) {
  Operand& operand = operands_[name];
  operand.tensor = describe(name, dtype, file_shape, false);
  operand.file_shape = std::move(file_shape);
  operand.wanted = !options_.in.empty() || options_.npy_outputs.count(name) != 0;
}

void Request::add_outputs() {
  const bool npy = options_.in.empty();
  const auto asked = [&](const std::string& name) {
    return !npy || options_.npy_outputs.count(name) != 0;
  };
  const Operand& q = operands_.at("q");
  std::vector<int64_t> out_shape = q.file_shape;
  out_shape.back() = operands_.at("v").file_shape.back();
  const runmax_dtype statistics = statistics_dtype(q.tensor.dtype);
  const std::vector<int64_t> lse_shape =
      packed_ ? std::vector<int64_t>{q.file_shape[1], q.file_shape[0]}
              : std::vector<int64_t>(q.tensor.shape, q.tensor.shape + 3);

  add_output("out", q.tensor.dtype, out_shape);
  for (const char* name : {"lse", "lse_lo"}) {
    // Backward reads them.
    if (asked(name) || wants_backward_) add_output(name, statistics, lse_shape);
  }
  for (const char* name : {"out", "lse", "lse_lo"}) {
    const auto it = operands_.find(name);
    if (it != operands_.end()) forward_.*operand_named(name).tensor = it->second.tensor;
  }

  struct Gradient {
    const char* name;
    const char* of;
  };
  constexpr Gradient kGradients[] = {{"d_q", "q"},       {"d_k", "k"},
                                     {"d_v", "v"},       {"d_bias", "bias"},
                                     {"d_sink", "sink"}, {"d_alibi_slopes", "alibi_slopes"}};
  backward_ = forward_;
  backward_.op = RUNMAX_BACKWARD;
  // `explain --direction backward` on a file without upstream gradients: as if d_out were there.
  if (wants_backward_ && find("d_out") == nullptr && find("d_lse") == nullptr) {
    add_output("d_out", q.tensor.dtype, out_shape);
    operands_.at("d_out").wanted = false;
  }
  bool any = false;
  for (const char* name : {"d_out", "d_lse"}) {
    const auto it = operands_.find(name);
    if (it != operands_.end()) backward_.*operand_named(name).tensor = it->second.tensor;
  }
  for (const Gradient& gradient : kGradients) {
    const auto input = operands_.find(gradient.of);
    if (npy && asked(gradient.name)) {
      if (!wants_backward_) {
        fail(flag_of(gradient.name), "is given without --d-out or --d-lse, must have one of them");
      }
      if (input == operands_.end()) {
        fail(flag_of(gradient.name), "is given without {}, must have it", flag_of(gradient.of));
      }
    }
    if (!wants_backward_ || input == operands_.end() || !asked(gradient.name)) continue;
    any = true;
    add_output(gradient.name, input->second.tensor.dtype, input->second.file_shape);
    backward_.*operand_named(gradient.name).tensor = operands_.at(gradient.name).tensor;
  }
  if (wants_backward_ && !any) {
    fail(find("d_out") != nullptr ? "--d-out" : "--d-lse",
         "asks for gradients, must have an output for one: --d-q, --d-k, --d-v, ...");
  }
}

void Request::load(runmax_device* device) {
  double total = 0;
  for (const auto& [name, operand] : operands_) {
    double bytes = static_cast<double>(dtype_bytes(operand.tensor.dtype));
    for (const int64_t length : operand.file_shape) bytes *= static_cast<double>(length);
    total += bytes;
  }
  require_memory(device, total);
  for (auto& [name, operand] : operands_) {
    uint64_t bytes = 0;
    if (!tensor_bytes(operand.file_shape, dtype_bytes(operand.tensor.dtype), bytes)) {
      throw std::bad_alloc();
    }
    operand.memory = DeviceBuffer(device, bytes);
    operand_named(name).bind(args_, operand.memory.get());
    if (operand.source != nullptr) read_input(device, operand);
  }
}

void Request::read_input(runmax_device* device, const Operand& operand) const {
  const FileTensor& source = *operand.source;
  const bool widen = operand.tensor.dtype != source.dtype;
  auto* to = static_cast<char*>(operand.memory.get());
  std::vector<float> piece(std::min<uint64_t>(kPiece, source.bytes + 3) / sizeof(float));
  std::vector<double> wide(widen ? piece.size() : 0);
  for (uint64_t done = 0; done < source.bytes;) {
    const size_t count = std::min<uint64_t>(piece.size() * sizeof(float), source.bytes - done);
    source.file->read(source.offset + done, piece.data(), count);
    const void* from = piece.data();
    size_t bytes = count;
    if (widen) {
      std::copy_n(piece.begin(), count / sizeof(float), wide.begin());
      from = wide.data();
      bytes = count / sizeof(float) * sizeof(double);
    }
    require(runmax_device_copy(device, to, from, bytes, RUNMAX_COPY_TO_DEVICE, nullptr));
    require(runmax_device_sync(device, nullptr));
    to += bytes;
    done += count;
  }
}

std::vector<Request::Output> Request::outputs() const {
  std::vector<Output> result;
  for (const char* name : kOutputTensors) {
    const auto it = operands_.find(name);
    if (it == operands_.end() || !it->second.wanted) continue;
    const Operand& operand = it->second;
    result.push_back({name, operand.tensor.dtype, operand.file_shape, operand.memory.get(),
                      operand.memory.bytes()});
  }
  return result;
}

void for_each_piece(runmax_device* device, const void* pointer, size_t bytes,
                    const std::function<void(const void*, size_t)>& visit) {
  std::vector<char> piece(std::min(kPiece, bytes));
  const char* from = static_cast<const char*>(pointer);
  while (bytes > 0) {
    const size_t count = std::min(piece.size(), bytes);
    require(
        runmax_device_copy(device, piece.data(), from, count, RUNMAX_COPY_FROM_DEVICE, nullptr));
    require(runmax_device_sync(device, nullptr));
    visit(piece.data(), count);
    from += count;
    bytes -= count;
  }
}

}  // namespace runmax::cli
