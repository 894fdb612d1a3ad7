// runmax for C++20: views, owners and errors as values over runmax.h. Header-only; needs neither
// exceptions nor RTTI.
//
//   std::vector<float> q(2 * 8 * 128 * 64), k = ..., v = ..., out(q.size());
//   runmax::Status status = runmax::attention(
//       runmax::TensorView(q, {2, 8, 128, 64}),   // [batch, q_heads, q_len, head_dim]
//       runmax::TensorView(k, {2, 2, 512, 64}),   // [batch, kv_heads, kv_len, head_dim]
//       runmax::TensorView(v, {2, 2, 512, 64}),   // [batch, kv_heads, kv_len, head_dim_v]
//       runmax::TensorView(out, {2, 8, 128, 64}), // [batch, q_heads, q_len, head_dim_v]
//       {.causal = true});
//   if (!status) std::puts(status.message().c_str());
//
// With a plan of one's own: fill a Problem, Plan::create(problem, device), then execute as often as
// wanted with a workspace of plan.workspace_size() bytes. What every option means and which values
// are legal stands in runmax.h and docs/numerics.md; a refused call says which field and why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#if defined(__cpp_exceptions)
#include <stdexcept>
#endif

#include "runmax/runmax.h"

namespace runmax {
inline namespace v1 {

// ------------------------------------------------------------------------------------ errors

// OK, or a code with one line "FIELD: what is wrong (value), what is allowed".
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(runmax_status code, std::string message, std::string field)
      : code_(code), message_(std::move(message)), field_(std::move(field)) {}

  // Takes over what a C function of this thread has just answered.
  static Status last(runmax_status code) {
    if (code == RUNMAX_OK) return {};
    return {code, runmax_last_error(), runmax_last_error_field()};
  }

  bool ok() const { return code_ == RUNMAX_OK; }
  explicit operator bool() const { return ok(); }
  runmax_status code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& field() const { return field_; }  // "q.shape[2]"; "" if none

 private:
  runmax_status code_ = RUNMAX_OK;
  std::string message_;
  std::string field_;
};

#if defined(__cpp_exceptions)
// What Result::value() throws.
class Error : public std::runtime_error {
 public:
  explicit Error(Status status)
      : std::runtime_error(status.message()), status_(std::move(status)) {}
  const Status& status() const { return status_; }

 private:
  Status status_;
};
#endif

// A T, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : data_(std::move(value)) {}
  Result(Status status) : data_(std::move(status)) {}

  bool ok() const { return data_.index() == 0; }
  explicit operator bool() const { return ok(); }
  Status status() const { return ok() ? Status() : *std::get_if<1>(&data_); }

  // The T. Without one: throws Error; where exceptions are off, prints the message and aborts.
  T& value() & { return require(), *std::get_if<0>(&data_); }
  const T& value() const& { return require(), *std::get_if<0>(&data_); }
  T&& value() && { return require(), std::move(*std::get_if<0>(&data_)); }

  // Only where ok().
  T& operator*() & { return *std::get_if<0>(&data_); }
  const T& operator*() const& { return *std::get_if<0>(&data_); }
  T&& operator*() && { return std::move(*std::get_if<0>(&data_)); }
  T* operator->() { return std::get_if<0>(&data_); }
  const T* operator->() const { return std::get_if<0>(&data_); }

 private:
  void require() const {
    if (ok()) return;
#if defined(__cpp_exceptions)
    throw Error(status());
#else
    std::fprintf(stderr, "runmax: %s\n", status().message().c_str());
    std::abort();
#endif
  }

  std::variant<T, Status> data_;
};

// ----------------------------------------------------------------------------------- tensors

// 16-bit floats by their bits. A program with a half type of its own specialises dtype_of for it.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

template <class T>
inline constexpr runmax_dtype dtype_of = RUNMAX_DTYPE_NONE;
template <>
inline constexpr runmax_dtype dtype_of<float> = RUNMAX_F32;
template <>
inline constexpr runmax_dtype dtype_of<double> = RUNMAX_F64;
template <>
inline constexpr runmax_dtype dtype_of<bf16> = RUNMAX_BF16;
template <>
inline constexpr runmax_dtype dtype_of<f16> = RUNMAX_F16;
template <>
inline constexpr runmax_dtype dtype_of<int32_t> = RUNMAX_I32;
template <>
inline constexpr runmax_dtype dtype_of<bool> = RUNMAX_BOOL;
template <>
inline constexpr runmax_dtype dtype_of<unsigned char> = RUNMAX_BOOL;

// Contiguous elements that a T* can point to and that outlive the expression: no temporary vector.
template <class R, class T>
concept ContiguousRangeOf = std::ranges::contiguous_range<R> && std::ranges::borrowed_range<R> &&
    std::is_convertible_v<std::add_pointer_t<std::ranges::range_reference_t<R>>,
                          std::add_pointer_t<T>>;

// Elements of type T with shape and strides (in elements), somewhere in memory that someone else
// owns. At most RUNMAX_MAX_RANK dimensions; more are refused by the call that uses the view.
template <class T>
class TensorView {
  static_assert(dtype_of<std::remove_cv_t<T>> != RUNMAX_DTYPE_NONE,
                "runmax has no such element type; see runmax::dtype_of");

 public:
  using Dims = std::initializer_list<int64_t>;

  TensorView() = default;  // an absent operand

  // Contiguous, row-major.
  TensorView(T* data, Dims shape) : TensorView(data, shape, {}) {}

  // Any strides: 0 repeats (inputs only), negative ones run backwards from `data`.
  TensorView(T* data, Dims shape, Dims strides) : data_(data) {
    tensor_.dtype = dtype_of<std::remove_cv_t<T>>;
    tensor_.rank = static_cast<int32_t>(shape.size());
    for (size_t i = 0; i < shape.size() && i < RUNMAX_MAX_RANK; ++i) {
      tensor_.shape[i] = shape.begin()[i];
    }
    uint64_t step = 1;  // unsigned: a shape too large is refused later, not undefined here
    for (size_t i = RUNMAX_MAX_RANK; i-- > 0;) {
      if (i >= shape.size()) continue;
      tensor_.stride[i] = i < strides.size() ? strides.begin()[i] : static_cast<int64_t>(step);
      step *= static_cast<uint64_t>(tensor_.shape[i]);
    }
  }

  // A std::vector, std::array, std::span, ...: contiguous, and its size has to hold the shape,
  // which is checked by the call that uses the view.
  template <ContiguousRangeOf<T> R>
  TensorView(R&& range, Dims shape) : TensorView(std::ranges::data(range), shape) {
    capacity_ = static_cast<int64_t>(std::ranges::size(range));
  }

  // The same elements with dimensions in another order: a [batch, len, heads, dim] buffer is given
  // as TensorView(data, {batch, len, heads, dim}).permute({0, 2, 1, 3}).
  TensorView permute(std::initializer_list<int32_t> order) const {
    TensorView result = *this;
    uint64_t seen = 0;
    for (size_t i = 0; i < order.size() && i < RUNMAX_MAX_RANK; ++i) {
      const int32_t from = order.begin()[i];
      if (from < 0 || from >= RUNMAX_MAX_RANK) break;
      seen |= uint64_t{1} << from;
      result.tensor_.shape[i] = tensor_.shape[from];
      result.tensor_.stride[i] = tensor_.stride[from];
    }
    // No permutation: refused, like any other wrong rank, by the call that uses the view.
    const bool whole = order.size() <= RUNMAX_MAX_RANK &&
                       static_cast<int32_t>(order.size()) == tensor_.rank &&
                       seen == (uint64_t{1} << order.size()) - 1;
    if (!whole) result.tensor_.rank = -1;
    return result;
  }

  // A promise about the pointer, in bytes; kernels may need one. 0 = the element size.
  TensorView aligned(int32_t bytes) const {
    TensorView result = *this;
    result.tensor_.min_alignment = bytes;
    return result;
  }

  T* data() const { return data_; }
  const runmax_tensor& tensor() const { return tensor_; }
  int64_t capacity() const { return capacity_; }  // elements behind data(), -1 = not known

 private:
  T* data_ = nullptr;
  runmax_tensor tensor_{};
  int64_t capacity_ = -1;
};

template <std::ranges::contiguous_range R>
TensorView(R&&, std::initializer_list<int64_t>)
    -> TensorView<std::remove_reference_t<std::ranges::range_reference_t<R>>>;

// A view of any element type, as an operand that is read (Input) or written (Output).
template <class Void>
struct Operand {
  Operand() = default;  // absent
  template <class T>
  requires std::is_convertible_v<T*, Void*> Operand(const TensorView<T>& view)
      : data(view.data()), tensor(view.tensor()), capacity(view.capacity()) {}

  Void* data = nullptr;
  runmax_tensor tensor{};
  int64_t capacity = -1;
};
using Input = Operand<const void>;
using Output = Operand<void>;

// ----------------------------------------------------------------------------------- problem

// One call: operands and options. Everything may be left out but q, k, v, out. An aggregate, meant
// for designated initialisers: Problem{.q = q, .k = k, .v = v, .out = out, .causal = true}.
// Shapes and types of the operands: see runmax_problem in runmax.h.
struct Problem {
  Input q = {}, k = {}, v = {};
  Output out = {};

  bool causal = false;
  std::optional<double> scale = {};          // default 1/sqrt(head_dim)
  std::optional<int64_t> window_left = {};   // default: no bound
  std::optional<int64_t> window_right = {};  // default: no bound
  int64_t sink_tokens = 0;
  double softcap = 0;
  double dropout = 0;
  uint64_t seed = 0;
  uint64_t offset = 0;
  int32_t diagonal_alignment = RUNMAX_ALIGN_BOTTOM_RIGHT;

  Output lse = {}, lse_lo = {};
  Input bias = {}, mask = {}, alibi_slopes = {}, sink = {};
  Input seqused_q = {}, seqused_kv = {}, prefix_len = {}, diagonal_offset = {};
  Input segment_ids_q = {}, segment_ids_kv = {};
  Input cu_seqlens_q = {}, cu_seqlens_kv = {};
  int64_t max_q_len = 0, max_kv_len = 0;
  Input block_index = {};
  int64_t block_q = 0, block_kv = 0;

  bool deterministic = false;
  bool batch_invariant = false;
  bool keep_unused = false;
  bool checked = false;
  bool allow_tf32 = false;
  const char* kernel = nullptr;
  int32_t num_splits = 0;

  int32_t op = RUNMAX_FORWARD;
  Input d_out = {}, d_lse = {};
  Output d_q = {}, d_k = {}, d_v = {}, d_bias = {}, d_sink = {}, d_alibi_slopes = {};
  Input partial_out = {}, partial_lse = {};
  Output d_partial_out = {}, d_partial_lse = {};

  // For the C interface: everything but the pointers, and the pointers.
  runmax_problem describe() const {
    runmax_problem problem{};
    problem.struct_size = sizeof problem;
    problem.op = op;
    problem.flags = (causal ? RUNMAX_CAUSAL : 0) | (deterministic ? RUNMAX_DETERMINISTIC : 0) |
                    (batch_invariant ? RUNMAX_BATCH_INVARIANT : 0) |
                    (keep_unused ? RUNMAX_KEEP_UNUSED : 0) | (checked ? RUNMAX_CHECKED : 0) |
                    (allow_tf32 ? RUNMAX_ALLOW_TF32 : 0);
    problem.present = (scale ? RUNMAX_PRESENT_SCALE : 0) |
                      (window_left ? RUNMAX_PRESENT_WINDOW_LEFT : 0) |
                      (window_right ? RUNMAX_PRESENT_WINDOW_RIGHT : 0);
    problem.scale = scale.value_or(0);
    problem.window_left = window_left.value_or(0);
    problem.window_right = window_right.value_or(0);
    problem.sink_tokens = sink_tokens;
    problem.softcap = softcap;
    problem.dropout = dropout;
    problem.diagonal_alignment = diagonal_alignment;
    problem.block_q = block_q;
    problem.block_kv = block_kv;
    problem.max_q_len = max_q_len;
    problem.max_kv_len = max_kv_len;
    problem.num_splits = num_splits;
    problem.kernel = kernel;
    for_each_operand([&](const char*, const auto& operand, runmax_tensor runmax_problem::*tensor,
                         auto) { problem.*tensor = operand.tensor; });
    return problem;
  }

  runmax_args args() const {
    runmax_args args{};
    args.struct_size = sizeof args;
    args.seed = seed;
    args.offset = offset;
    for_each_operand([&](const char*, const auto& operand, auto, auto pointer) {
      using Pointer = std::remove_reference_t<decltype(args.*pointer)>;
      args.*pointer = static_cast<Pointer>(operand.data);
    });
    return args;
  }

  // Does every container hold the shape it was given with? (Plain pointers cannot be asked.)
  Status check_capacity() const {
    Status status;
    for_each_operand([&](const char* name, const auto& operand, auto, auto) {
      if (!status.ok() || operand.capacity < 0) return;
      const runmax_tensor& tensor = operand.tensor;
      int64_t elements = 1;  // stops growing once it exceeds every container
      for (int32_t i = 0; i < tensor.rank && i < RUNMAX_MAX_RANK; ++i) {
        if (tensor.shape[i] <= 0) return;  // nothing to hold, or refused with a better message
        elements = elements > operand.capacity / tensor.shape[i] ? operand.capacity + 1
                                                                 : elements * tensor.shape[i];
      }
      if (elements > operand.capacity) {
        status = {RUNMAX_INVALID_ARGUMENT,
                  std::string(name) + ": the container has too few elements (" +
                      std::to_string(operand.capacity) + "), must hold the whole shape",
                  name};
      }
    });
    return status;
  }

 private:
  // f(name, operand, its place in runmax_problem, its place in runmax_args), for every operand.
  template <class F>
  void for_each_operand(F f) const;
};

template <class F>
void Problem::for_each_operand(F f) const {
  using P = runmax_problem;
  using A = runmax_args;
  f("q", q, &P::q, &A::q);
  f("k", k, &P::k, &A::k);
  f("v", v, &P::v, &A::v);
  f("out", out, &P::out, &A::out);
  f("lse", lse, &P::lse, &A::lse);
  f("lse_lo", lse_lo, &P::lse_lo, &A::lse_lo);
  f("bias", bias, &P::bias, &A::bias);
  f("mask", mask, &P::mask, &A::mask);
  f("alibi_slopes", alibi_slopes, &P::alibi_slopes, &A::alibi_slopes);
  f("sink", sink, &P::sink, &A::sink);
  f("seqused_q", seqused_q, &P::seqused_q, &A::seqused_q);
  f("seqused_kv", seqused_kv, &P::seqused_kv, &A::seqused_kv);
  f("prefix_len", prefix_len, &P::prefix_len, &A::prefix_len);
  f("diagonal_offset", diagonal_offset, &P::diagonal_offset, &A::diagonal_offset);
  f("segment_ids_q", segment_ids_q, &P::segment_ids_q, &A::segment_ids_q);
  f("segment_ids_kv", segment_ids_kv, &P::segment_ids_kv, &A::segment_ids_kv);
  f("cu_seqlens_q", cu_seqlens_q, &P::cu_seqlens_q, &A::cu_seqlens_q);
  f("cu_seqlens_kv", cu_seqlens_kv, &P::cu_seqlens_kv, &A::cu_seqlens_kv);
  f("block_index", block_index, &P::block_index, &A::block_index);
  f("d_out", d_out, &P::d_out, &A::d_out);
  f("d_lse", d_lse, &P::d_lse, &A::d_lse);
  f("d_q", d_q, &P::d_q, &A::d_q);
  f("d_k", d_k, &P::d_k, &A::d_k);
  f("d_v", d_v, &P::d_v, &A::d_v);
  f("d_bias", d_bias, &P::d_bias, &A::d_bias);
  f("d_sink", d_sink, &P::d_sink, &A::d_sink);
  f("d_alibi_slopes", d_alibi_slopes, &P::d_alibi_slopes, &A::d_alibi_slopes);
  f("partial_out", partial_out, &P::partial_out, &A::partial_out);
  f("partial_lse", partial_lse, &P::partial_lse, &A::partial_lse);
  f("d_partial_out", d_partial_out, &P::d_partial_out, &A::d_partial_out);
  f("d_partial_lse", d_partial_lse, &P::d_partial_lse, &A::d_partial_lse);
}

// Is the problem well-formed? The code is RUNMAX_OK or RUNMAX_INVALID_ARGUMENT.
inline Status validate(const Problem& problem) {
  const runmax_problem description = problem.describe();
  return Status::last(runmax_validate(&description));
}

// ------------------------------------------------------------------------------------ device

struct DeviceOptions {
  int32_t kind = RUNMAX_DEVICE_CPU;
  int32_t index = 0;
  int32_t max_threads = 0;                     // CPU; 0 = what the process may use
  uint64_t isa_mask = 0;                       // CPU; 0 = all that the machine has
  runmax_parallel_for parallel_for = nullptr;  // CPU; null = the device's own threads
  void* parallel_for_self = nullptr;
};

// Owns a runmax_device. Movable; destroy it after its plans and buffers.
class Device {
 public:
  static Result<Device> create(const DeviceOptions& options = {}) {
    runmax_device_options c{};
    c.struct_size = sizeof c;
    c.kind = options.kind;
    c.index = options.index;
    c.max_threads = options.max_threads;
    c.isa_mask = options.isa_mask;
    c.parallel_for = options.parallel_for;
    c.parallel_for_self = options.parallel_for_self;
    runmax_device* device = nullptr;
    const Status status = Status::last(runmax_device_create(&c, &device));
    if (!status) return status;
    return Device(device);
  }

  Result<runmax_device_info> info() const {
    runmax_device_info info{};
    info.struct_size = sizeof info;
    const Status status = Status::last(runmax_device_get_info(get(), &info));
    if (!status) return status;
    return info;
  }

  // Does some kernel take the problem? If not, the message has one line of reason per kernel.
  Status supports(const Problem& problem) const {
    const runmax_problem description = problem.describe();
    return Status::last(runmax_supports(&description, get()));
  }

  // RUNMAX_COPY_TO_DEVICE and so on. On the CPU `stream` is null.
  Status copy(void* to, const void* from, size_t bytes, int32_t direction,
              void* stream = nullptr) const {
    return Status::last(runmax_device_copy(get(), to, from, bytes, direction, stream));
  }
  Status sync(void* stream = nullptr) const {
    return Status::last(runmax_device_sync(get(), stream));
  }

  runmax_device* get() const { return device_.get(); }

 private:
  struct Destroy {
    void operator()(runmax_device* device) const { runmax_device_destroy(device); }
  };
  explicit Device(runmax_device* device) : device_(device) {}
  std::unique_ptr<runmax_device, Destroy> device_;
};

// Owns memory of a device, aligned as a workspace has to be.
class Buffer {
 public:
  Buffer() = default;
  static Result<Buffer> create(const Device& device, size_t bytes) {
    void* pointer = nullptr;
    const Status status = Status::last(runmax_device_alloc(device.get(), bytes, &pointer));
    if (!status) return status;
    return Buffer(device.get(), pointer, bytes);
  }

  void* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    runmax_device* device;
    void operator()(void* pointer) const { runmax_device_free(device, pointer); }
  };
  Buffer(runmax_device* device, void* pointer, size_t bytes)
      : data_(pointer, Free{device}), size_(bytes) {}
  std::unique_ptr<void, Free> data_;
  size_t size_ = 0;
};

// -------------------------------------------------------------------------------------- plan

// Owns a runmax_plan: immutable, may be executed from several threads at once, each with a
// workspace of its own.
class Plan {
 public:
  static Result<Plan> create(const Problem& problem, const Device& device) {
    return create(problem.describe(), device);
  }
  static Result<Plan> create(const runmax_problem& problem, const Device& device) {
    runmax_plan* plan = nullptr;
    const Status status = Status::last(runmax_plan_create(&problem, device.get(), &plan));
    if (!status) return status;
    return Plan(plan);
  }

  size_t workspace_size() const { return runmax_plan_workspace_size(get()); }
  const char* explain() const { return runmax_plan_explain(get()); }  // owned by the plan

  Result<runmax_plan_info> info() const {
    runmax_plan_info info{};
    info.struct_size = sizeof info;
    const Status status = Status::last(runmax_plan_get_info(get(), &info));
    if (!status) return status;
    return info;
  }

  // Runs; allocates nothing. The problem given here has the shapes and options of the one that was
  // planned; only its pointers, seed and offset are read.
  Status execute(const Problem& problem, const Buffer& workspace, void* stream = nullptr) const {
    return execute(problem.args(), workspace.data(), workspace.size(), stream);
  }
  Status execute(const runmax_args& args, void* workspace, size_t workspace_size,
                 void* stream = nullptr) const {
    return Status::last(runmax_execute(get(), &args, workspace, workspace_size, stream));
  }

  // Checks pointers, overlap and every index tensor; runs nothing.
  Status check(const Problem& problem, void* stream = nullptr) const {
    const runmax_args args = problem.args();
    return Status::last(runmax_check_args(get(), &args, stream));
  }

  runmax_plan* get() const { return plan_.get(); }

 private:
  struct Destroy {
    void operator()(runmax_plan* plan) const { runmax_plan_destroy(plan); }
  };
  explicit Plan(runmax_plan* plan) : plan_(plan) {}
  std::unique_ptr<runmax_plan, Destroy> plan_;
};

// -------------------------------------------------------------------------------- convenience

// Plans, keeps the last plan and a workspace, executes. For one thread at a time; the device has to
// outlive it.
class Attention {
 public:
  explicit Attention(const Device& device) : device_(&device) {}

  Status operator()(const Problem& problem, void* stream = nullptr) {
    if (Status status = problem.check_capacity(); !status) return status;
    if (Status status = prepare(problem, stream); !status) return status;
    return plan_->execute(problem, workspace_, stream);
  }

 private:
  Status prepare(const Problem& problem, void* stream) {
    runmax_problem description = problem.describe();
    const std::string kernel = problem.kernel == nullptr ? "" : problem.kernel;
    runmax_problem key = description;
    key.kernel = nullptr;
    // runmax_problem has no padding, so bytes compare.
    if (plan_ && kernel == kernel_ && std::memcmp(&key, &key_, sizeof key) == 0) return {};

    Result<Plan> plan = Plan::create(description, *device_);
    if (!plan) return plan.status();
    if (plan->workspace_size() > workspace_.size()) {
      if (Status status = device_->sync(stream); !status)
        return status;  // the old one may be in use
      Result<Buffer> workspace = Buffer::create(*device_, plan->workspace_size());
      if (!workspace) return workspace.status();
      workspace_ = std::move(*workspace);
    }
    plan_ = std::move(*plan);
    key_ = key;
    kernel_ = kernel;
    return {};
  }

  const Device* device_;
  std::optional<Plan> plan_;
  runmax_problem key_{};
  std::string kernel_;
  Buffer workspace_;
};

// One call on the CPU, on a device that all callers share; the plan and the workspace of the last
// call stay with the calling thread.
inline Status attention(const Problem& problem) {
  // Never destroyed: threads may outlive the end of main.
  static const Result<Device>& device = *new Result<Device>(Device::create());
  if (!device) return device.status();
  thread_local Attention attend(*device);
  return attend(problem);
}

// q [batch, q_heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim],
// v [batch, kv_heads, kv_len, head_dim_v], out [batch, q_heads, q_len, head_dim_v], and options:
// attention(q, k, v, out, {.causal = true}).
inline Status attention(const Input& q, const Input& k, const Input& v, const Output& out,
                        Problem options = {}) {
  options.q = q;
  options.k = k;
  options.v = v;
  options.out = out;
  return attention(options);
}

// Combines partial_out and partial_lse, the results of attention over disjoint sets of keys, into
// out and lse.
inline Status merge(const Device& device, Problem problem, void* stream = nullptr) {
  problem.op = RUNMAX_MERGE;
  if (Status status = problem.check_capacity(); !status) return status;
  const runmax_problem description = problem.describe();
  const runmax_args args = problem.args();
  return Status::last(runmax_merge(device.get(), &description, &args, stream));
}

}  // namespace v1
}  // namespace runmax
