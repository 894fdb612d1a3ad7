#include "testing/run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "reference/plain.h"
#include "testing/element.h"

namespace runmax::testing {
namespace {

std::string format(const char* pattern, double a, double b = 0, double c = 0) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, a, b, c);
  return text;
}

class HostMemory : public Memory {
 public:
  void* alloc(size_t bytes) override { return ::operator new (bytes, std::align_val_t{64}); }
  void free(void* pointer) override { ::operator delete (pointer, std::align_val_t{64}); }
  void copy_in(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_out(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
};

// Exactly the bytes that the plan asks for, aligned to 64 and no better, full of 0xFF, and guards.
class GuardedWorkspace {
 public:
  GuardedWorkspace(Memory& memory, size_t bytes, bool on_host)
      : memory_(memory),
        on_host_(on_host),
        bytes_(bytes),
        image_(kGuard + bytes + kGuard, std::byte{kPattern}) {
    allocation_ = memory.alloc(image_.size() + 128);
    const auto address = reinterpret_cast<uintptr_t>(allocation_);
    // The workspace starts kGuard (a multiple of 128) after a start that is 64 modulo 128.
    start_ = static_cast<std::byte*>(allocation_) + ((64 - address) & 127);
    std::fill_n(image_.begin() + kGuard, bytes, std::byte{0xff});
    memory.copy_in(start_, image_.data(), image_.size());
  }
  ~GuardedWorkspace() { memory_.free(allocation_); }
  GuardedWorkspace(const GuardedWorkspace&) = delete;
  GuardedWorkspace& operator=(const GuardedWorkspace&) = delete;

  void* pointer() const { return start_ + kGuard; }
  void forbid_guards(bool forbid) const {
    if (!on_host_) return;
    forbid_memory(start_, kGuard, forbid);
    forbid_memory(start_ + kGuard + bytes_, kGuard, forbid);
  }
  bool intact() {
    memory_.copy_out(image_.data(), start_, image_.size());
    const auto clean = [&](size_t begin) {
      return std::all_of(image_.begin() + begin, image_.begin() + begin + kGuard,
                         [](std::byte b) { return b == std::byte{kPattern}; });
    };
    return clean(0) && clean(kGuard + bytes_);
  }

 private:
  static constexpr size_t kGuard = 1024;
  static constexpr uint8_t kPattern = 0x5a;
  Memory& memory_;
  bool on_host_;
  size_t bytes_;
  std::vector<std::byte> image_;
  void* allocation_;
  std::byte* start_;
};

struct PlanDeleter {
  void operator()(runmax_plan* plan) const { runmax_plan_destroy(plan); }
};

Outcome failure(runmax_status status) {
  Outcome outcome;
  outcome.status = status;
  outcome.message = runmax_last_error();
  outcome.field = runmax_last_error_field();
  return outcome;
}

runmax_device_info info_of(const runmax_device* device) {
  runmax_device_info info{};
  info.struct_size = sizeof info;
  runmax_device_get_info(device, &info);
  return info;
}

runmax_tensor contiguous(runmax_tensor tensor) {
  int64_t step = 1;
  for (int d = tensor.rank; d-- > 0;) {
    tensor.stride[d] = step;
    step *= std::max<int64_t>(1, tensor.shape[d]);
  }
  tensor.min_alignment = 0;
  return tensor;
}

// Rows of every head, the first and last among them, chosen by the seed.
std::vector<int64_t> sample_rows(const runmax_tensor& out, const CheckOptions& options) {
  const bool packed = out.rank == 3;
  const int64_t heads = packed ? out.shape[1] : out.shape[0] * out.shape[1];
  const int64_t length = packed ? out.shape[0] : out.shape[2];
  std::vector<int64_t> rows;
  for (int64_t head = 0; head < heads; ++head) {
    std::vector<int64_t> chosen = {0, length - 1};
    for (int64_t n = 2; n < options.rows_per_head; ++n) {
      chosen.push_back(random_below(options.row_seed + static_cast<uint64_t>(head),
                                    static_cast<uint64_t>(n), length));
    }
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    for (int64_t row : chosen) rows.push_back(head * length + row);
  }
  return rows;
}

// With RUNMAX_KEEP_UNUSED what belongs to no sequence is left alone, and all else is written.
// `used` answers for the element with an index and a row-major number.
using Used = std::function<bool(const int64_t* index, int64_t number)>;
std::string writing_fault(const Case& c, const std::string& name, const Used& used) {
  const Buffer& b = c.buffer(name);
  int64_t bad = 0, number = 0;
  for_each_element(b.tensor, [&](const int64_t* i, int64_t offset) {
    bad += c.is_unwritten(b, offset) == used(i, number++);
  });
  if (bad == 0) return "";
  return name + ": " + std::to_string(bad) +
         " elements were not written, or written where keep_unused forbids it";
}

std::string writing_fault(const Case& c, const reference::Forward& oracle) {
  std::string fault;
  for (const char* name : {"out", "lse", "lse_lo"}) {
    if (!c.has(name) || !fault.empty()) continue;
    const runmax_tensor& t = c.buffer(name).tensor;
    const bool packed_out = std::string_view(name) == "out" && t.rank == 3;
    fault = writing_fault(c, name, [&](const int64_t* i, int64_t) {
      // The row's number in lse order.
      const int64_t* s = t.shape;
      const int64_t row = packed_out    ? i[1] * s[0] + i[0]
                          : t.rank == 2 ? i[0] * s[1] + i[1]
                                        : (i[0] * s[1] + i[1]) * s[2] + i[2];
      return oracle.row_used[static_cast<size_t>(row)] != 0;
    });
  }
  return fault;
}

std::string writing_fault(const Case& c, const reference::Backward& oracle) {
  const std::pair<const char*, const reference::Gradient*> gradients[] = {
      {"d_q", &oracle.d_q}, {"d_k", &oracle.d_k}, {"d_v", &oracle.d_v}};
  std::string fault;
  for (const auto& [name, gradient] : gradients) {
    if (!c.has(name) || !fault.empty()) continue;
    fault = writing_fault(c, name, [&, of = gradient](const int64_t*, int64_t number) {
      return of->reach[static_cast<size_t>(number)] != reference::Reach::kUnused;
    });
  }
  return fault;
}

void compare(CheckReport& report, const runmax_problem& problem, const runmax_args& args,
             const reference::Forward& oracle) {
  report.out = compare_out(problem, args, oracle);
  if (problem.lse.dtype != RUNMAX_DTYPE_NONE) report.lse = compare_lse(problem, args, oracle);
  if (problem.lse.dtype != RUNMAX_DTYPE_NONE && problem.lse_lo.dtype != RUNMAX_DTYPE_NONE) {
    report.lse_lo = compare_lse_lo(problem, args, oracle);
  }
}

// Which rows to check, for a run that went well.
std::vector<int64_t> rows_to_check(const Outcome& outcome, const runmax_problem& problem,
                                   const CheckOptions& options, CheckReport& report) {
  const runmax_tensor& out = problem.out;
  report.rows_total =
      out.rank == 3 ? out.shape[0] * out.shape[1] : out.shape[0] * out.shape[1] * out.shape[2];
  std::vector<int64_t> rows;
  if (problem.op != RUNMAX_MERGE && outcome.info.visible_pairs > options.max_pairs) {
    rows = sample_rows(out, options);
  }
  report.rows_checked = rows.empty() ? report.rows_total : static_cast<int64_t>(rows.size());
  return rows;
}

void add_plain(CheckReport& report, const runmax_problem& problem, const runmax_args& args,
               const reference::Forward& oracle, const CheckOptions& options) {
  if (!options.with_plain || problem.op != RUNMAX_FORWARD) return;
  if (report.rows_checked != report.rows_total) return;
  OutputCopy plain(problem, args);
  reference::PlainOptions plain_options;
  plain_options.memory_limit = options.plain_memory_limit;
  report.plain_ran = reference::plain_forward(plain.problem, plain.args, plain_options);
  if (report.plain_ran) report.plain_out = compare_out(plain.problem, plain.args, oracle);
}

void compare_with_plain(CheckReport& report, const runmax_problem& problem, const runmax_args& args,
                        const reference::Backward& oracle, const CheckOptions& options) {
  for (const char* name : gradients_of(problem)) {
    report.gradients.push_back({name, compare_gradient(name, problem, args, oracle), {}});
  }
  if (!options.with_plain || problem.op != RUNMAX_BACKWARD) return;
  if (report.rows_checked != report.rows_total) return;
  OutputCopy plain(problem, args);
  reference::PlainOptions plain_options;
  plain_options.memory_limit = options.plain_memory_limit;
  if (!reference::plain_backward(plain.problem, plain.args, plain_options)) return;
  for (CheckReport::GradientResult& gradient : report.gradients) {
    gradient.plain = compare_gradient(gradient.name.c_str(), plain.problem, plain.args, oracle);
  }
}

}  // namespace

namespace {

struct DeviceDeleter {
  void operator()(runmax_device* device) const { runmax_device_destroy(device); }
};
using OwnedDevice = std::unique_ptr<runmax_device, DeviceDeleter>;

OwnedDevice make_device(const runmax_device_options& options) {
  runmax_device* device = nullptr;
  if (runmax_device_create(&options, &device) != RUNMAX_OK) {
    std::fprintf(stderr, "testing: no device: %s\n", runmax_last_error());
    std::abort();
  }
  return OwnedDevice(device);
}

}  // namespace

runmax_device* cpu_device(int64_t threads, uint64_t isa_mask) {
  static std::mutex mutex;
  static std::map<std::pair<int64_t, uint64_t>, OwnedDevice> devices;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& slot = devices[{threads, isa_mask}];
  if (slot == nullptr) {
    runmax_device_options options{};
    options.struct_size = sizeof options;
    options.max_threads = static_cast<int32_t>(threads);
    options.isa_mask = isa_mask;
    slot = make_device(options);
  }
  return slot.get();
}

runmax_device* cuda_device() {
  static const OwnedDevice device = [] {
    runmax_device_options options{};
    options.struct_size = sizeof options;
    options.kind = RUNMAX_DEVICE_CUDA;
    return make_device(options);
  }();
  return device.get();
}

int32_t test_device_kind() {
  const char* name = std::getenv("RUNMAX_TEST_DEVICE");
  return name != nullptr && std::strcmp(name, "cuda") == 0 ? RUNMAX_DEVICE_CUDA : RUNMAX_DEVICE_CPU;
}

runmax_device* device_for(const ProblemSpec& spec) {
  if (test_device_kind() == RUNMAX_DEVICE_CUDA) return cuda_device();
  return cpu_device(spec.threads, isa_mask(spec.isa));
}

std::vector<std::string> isa_levels() {
  if (test_device_kind() == RUNMAX_DEVICE_CUDA) return {"baseline"};
  const runmax_device_info info = info_of(cpu_device());
  std::vector<std::string> levels;
  for (uint64_t bit = 1; bit != 0 && bit <= info.isa_found; bit <<= 1) {
    if ((info.isa_found & bit) == 0) continue;
    if (const char* name = runmax_isa_name(bit)) levels.push_back(name);
  }
  return levels;
}

std::string Outcome::text() const {
  if (status != RUNMAX_OK) return std::string(runmax_status_name(status)) + ": " + message;
  if (!damage.empty()) return "damage: " + damage;
  return "ok";
}

namespace {

// Pointers are the device's.
Outcome execute_there(const runmax_problem& problem, const runmax_args& args,
                      runmax_device* device) {
  if (problem.op == RUNMAX_MERGE) {
    const runmax_status status = runmax_merge(device, &problem, &args, nullptr);
    if (status != RUNMAX_OK) return failure(status);
    Outcome outcome;
    if (runmax_device_sync(device, nullptr) != RUNMAX_OK) return failure(RUNMAX_DEVICE_ERROR);
    return outcome;
  }
  runmax_plan* raw = nullptr;
  runmax_status status = runmax_plan_create(&problem, device, &raw);
  if (status != RUNMAX_OK) return failure(status);
  const std::unique_ptr<runmax_plan, PlanDeleter> plan(raw);
  Outcome outcome;
  outcome.info.struct_size = sizeof outcome.info;
  status = runmax_plan_get_info(plan.get(), &outcome.info);
  if (status != RUNMAX_OK) return failure(status);

  HostMemory host;
  DeviceMemory remote(device);
  const bool on_host = info_of(device).kind == RUNMAX_DEVICE_CPU;
  Memory& memory = on_host ? static_cast<Memory&>(host) : remote;
  const size_t bytes = runmax_plan_workspace_size(plan.get());
  GuardedWorkspace workspace(memory, bytes, on_host);
  // execute() does not read index tensors on a GPU: whoever wants them checked asks.
  if (!on_host) status = runmax_check_args(plan.get(), &args, nullptr);
  if (status != RUNMAX_OK) return failure(status);
  workspace.forbid_guards(true);
  status = runmax_execute(plan.get(), &args, workspace.pointer(), bytes, nullptr);
  workspace.forbid_guards(false);
  if (status == RUNMAX_OK) status = runmax_device_sync(device, nullptr);
  if (status != RUNMAX_OK) {
    const runmax_plan_info info = outcome.info;
    outcome = failure(status);
    outcome.info = info;
  }
  if (!workspace.intact()) outcome.damage = "workspace: a guard was written";
  return outcome;
}

}  // namespace

Outcome execute(const runmax_problem& problem, const runmax_args& args, runmax_device* device) {
  if (info_of(device).kind == RUNMAX_DEVICE_CPU) return execute_there(problem, args, device);
  DeviceMemory memory(device);
  Placement placement(problem, args, memory);
  const Outcome outcome = execute_there(problem, placement.args(), device);
  placement.fetch();
  return outcome;
}

runmax_problem forward_of(const runmax_problem& backward) {
  runmax_problem forward = backward;
  if (backward.op == RUNMAX_BACKWARD) forward.op = RUNMAX_FORWARD;
  forward.kernel = nullptr;
  forward.num_splits = 0;
  for (const Operand& operand : operands()) {
    if (std::string_view(operand.name).starts_with("d_")) forward.*operand.tensor = {};
  }
  return forward;
}

Outcome execute(Case& c, runmax_device* device, bool through_device_memory) {
  Outcome outcome;
  if (asks_for_gradients(c.problem())) {
    runmax_problem forward = forward_of(c.problem());
    if (forward.op == RUNMAX_FORWARD) forward.flags |= RUNMAX_KEEP_UNUSED;
    outcome = execute(forward, c.args(), device);
  }
  c.seal();
  if (!outcome.ok()) return outcome;
  if (through_device_memory || info_of(device).kind != RUNMAX_DEVICE_CPU) {
    DeviceMemory memory(device);
    Placement placement(c, memory);
    outcome = execute_there(c.problem(), placement.args(), device);
    placement.fetch();
  } else {
    c.forbid_guards(true);
    outcome = execute(c.problem(), c.args(), device);
    c.forbid_guards(false);
  }
  if (outcome.damage.empty()) outcome.damage = c.damage();
  if (!outcome.damage.empty()) return outcome;
  for (const Operand& operand : operands()) {
    const std::string name = operand.name;
    if (!c.has(name) || !c.buffer(name).output) continue;
    const int64_t missing = c.unwritten(name);
    const bool refused = outcome.status != RUNMAX_OK;
    if (refused && missing != static_cast<int64_t>(c.values(name).size())) {
      outcome.damage = name + ": was written by a call that was refused";
    }
    if (!refused && missing != 0 && (c.problem().flags & RUNMAX_KEEP_UNUSED) == 0) {
      outcome.damage = name + ": " + std::to_string(missing) + " elements were not written";
    }
  }
  return outcome;
}

Outcome execute(Case& c, bool through_device_memory) {
  return execute(c, device_for(c.spec()), through_device_memory);
}

void note_errors(const std::string& kernel, runmax_dtype dtype, const Comparison& comparison) {
  struct Largest {
    double ratio = 0, error = 0;
  };
  struct Record {
    std::mutex mutex;
    std::map<std::string, Largest> of;
    ~Record() {
      if (std::getenv("RUNMAX_TEST_DEVICE") == nullptr) return;
      for (const auto& [name, largest] : of) {
        std::printf("[errors] %s %.4g %.4g\n", name.c_str(), largest.ratio, largest.error);
      }
    }
  };
  static Record record;
  const char* type = dtype == RUNMAX_F64    ? "f64"
                     : dtype == RUNMAX_BF16 ? "bf16"
                     : dtype == RUNMAX_F16  ? "f16"
                                            : "f32";
  const std::lock_guard<std::mutex> lock(record.mutex);
  Largest& largest = record.of[(kernel.empty() ? "merge" : kernel) + " " + type];
  largest.ratio = std::max(largest.ratio, comparison.max_ratio);
  largest.error = std::max(largest.error, comparison.max_error);
}

reference::Forward expected(const runmax_problem& problem, const runmax_args& args,
                            const std::vector<int64_t>& rows) {
  return problem.op == RUNMAX_MERGE ? reference::merge(problem, args)
                                    : reference::forward(problem, args, rows);
}

reference::Backward expected_gradients(const runmax_problem& problem, const runmax_args& args,
                                       const std::vector<int64_t>& rows) {
  return problem.op == RUNMAX_MERGE ? reference::merge_backward(problem, args)
                                    : reference::backward(problem, args, rows);
}

CheckReport check(const runmax_problem& problem, const runmax_args& args, runmax_device* device,
                  const CheckOptions& options) {
  CheckReport report;
  const bool gradients = asks_for_gradients(problem);
  const runmax_problem forward = gradients ? forward_of(problem) : problem;
  report.outcome = execute(forward, args, device);
  if (report.outcome.ok() && gradients) report.outcome = execute(problem, args, device);
  if (!report.outcome.ok()) return report;
  const std::vector<int64_t> rows = rows_to_check(report.outcome, problem, options, report);
  const reference::Forward oracle = expected(forward, args, rows);
  compare(report, forward, args, oracle);
  note_errors(report.outcome.info.kernel, problem.q.dtype, report.out);
  if (gradients) {
    compare_with_plain(report, problem, args, expected_gradients(problem, args, rows), options);
  } else {
    add_plain(report, problem, args, oracle, options);
  }
  return report;
}

CheckReport check(Case& c, const CheckOptions& options) {
  CheckReport report;
  report.problem = to_string(c.spec());
  report.outcome = execute(c);
  if (!report.outcome.ok()) return report;
  const std::vector<int64_t> rows = rows_to_check(report.outcome, c.problem(), options, report);
  const bool keep_unused = (c.problem().flags & RUNMAX_KEEP_UNUSED) != 0;
  if (asks_for_gradients(c.problem())) {
    const reference::Backward oracle = expected_gradients(c.problem(), c.args(), rows);
    if (keep_unused && rows.empty()) report.outcome.damage = writing_fault(c, oracle);
    if (report.outcome.damage.empty()) {
      compare_with_plain(report, c.problem(), c.args(), oracle, options);
    }
    return report;
  }
  const reference::Forward oracle = expected(c.problem(), c.args(), rows);
  if (keep_unused && rows.empty()) {
    report.outcome.damage = writing_fault(c, oracle);
    if (!report.outcome.damage.empty()) return report;
  }
  compare(report, c.problem(), c.args(), oracle);
  note_errors(report.outcome.info.kernel, c.problem().q.dtype, report.out);
  add_plain(report, c.problem(), c.args(), oracle, options);
  return report;
}

CheckReport check(const ProblemSpec& spec, const CheckOptions& options) {
  Case c(spec);
  return check(c, options);
}

bool CheckReport::passed() const {
  const auto good = [](const GradientResult& gradient) { return gradient.kernel.passed; };
  return outcome.ok() && out.passed && lse.passed && lse_lo.passed &&
         std::all_of(gradients.begin(), gradients.end(), good);
}

std::string CheckReport::text() const {
  std::string text;
  if (!problem.empty()) text += "problem    " + problem + "\n";
  if (outcome.status != RUNMAX_OK || !outcome.damage.empty()) {
    return text + "FAILED     " + outcome.text() + "\n";
  }
  if (outcome.info.kernel[0] != '\0')
    text += std::string("kernel     ") + outcome.info.kernel + "\n";
  text += "checked    " + std::to_string(rows_checked) + " of " + std::to_string(rows_total) +
          " rows against the float64 oracle";
  if (rows_checked != rows_total) text += " (the problem is too large to check every row)";
  text += "\n";
  const auto line = [&](const char* name, const Comparison& c) {
    if (c.compared == 0 && c.passed) return;
    text += name + format("largest error %.3g, %.3g of its gate; largest value %.4g\n", c.max_error,
                          c.max_ratio, c.max_expected);
    if (!c.passed) text += "FAILED     " + c.message + "\n";
  };
  line("out        ", out);
  line("lse        ", lse);
  line("lse_lo     ", lse_lo);
  if (plain_ran) {
    text += format("plain      largest error %.3g: the three-step computation, on the same data\n",
                   plain_out.max_error);
  }
  for (const GradientResult& gradient : gradients) {
    std::string name = gradient.name;
    name.resize(std::max<size_t>(name.size() + 1, 11), ' ');
    line(name.c_str(), gradient.kernel);
    if (gradient.plain.compared > 0) {
      text += format("           plain: largest error %.3g\n", gradient.plain.max_error);
    }
    if (gradient.kernel.compared == 0 && rows_checked != rows_total) {
      text += name + "not compared: it is a sum over every row\n";
    }
  }
  text += passed() ? "passed\n" : "";
  return text;
}

OutputCopy::OutputCopy(const runmax_problem& source, const runmax_args& source_args)
    : problem(source), args(source_args) {
  const auto replace = [](runmax_tensor& tensor, std::vector<std::byte>& buffer) -> void* {
    if (tensor.dtype == RUNMAX_DTYPE_NONE) return nullptr;
    tensor = contiguous(tensor);
    int64_t bytes = size_of(tensor.dtype);
    for (int d = 0; d < tensor.rank; ++d) bytes *= tensor.shape[d];
    buffer.assign(static_cast<size_t>(bytes), std::byte{0x7f});
    return buffer.data();
  };
  if (!asks_for_gradients(problem)) {
    args.out = replace(problem.out, out);
    args.lse = replace(problem.lse, lse);
    args.lse_lo = replace(problem.lse_lo, lse_lo);
    return;
  }
  for (const Operand& operand : operands()) {
    runmax_tensor& tensor = problem.*operand.tensor;
    if (tensor.dtype == RUNMAX_DTYPE_NONE || !operand.is_output(problem)) continue;
    operand.bind(args, replace(tensor, gradients[operand.name]));
  }
}

}  // namespace runmax::testing
