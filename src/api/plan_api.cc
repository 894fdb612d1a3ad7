// C entry points: problem, plan, execution. Marshalling and error text, nothing else.
#include "api/handles.h"
#include "api/last_error.h"
#include "core/abi.h"
#include "core/args.h"
#include "core/tensor.h"
#include "device/index_copy.h"

namespace runmax::api {
namespace {

constexpr uint64_t kAlignmentMask = RUNMAX_WORKSPACE_ALIGNMENT - 1;

Result<Problem> import_problem(const runmax_problem* problem) {
  RUNMAX_RETURN_IF_ERROR(require(problem, "problem"));
  return validate(*problem);
}

// The caller's args in the current layout, checked against the plan. Index tensors on a device are
// read only if `wait` says that this call may wait for them.
Status import_args(const Plan& plan, const runmax_args* args, runmax_args& current, bool wait,
                   void* stream) {
  RUNMAX_RETURN_IF_ERROR(require(args, "args"));
  RUNMAX_RETURN_IF_ERROR(import_struct(*args, kFirstArgsSize, current));
  const bool on_host = plan.device->info().kind == RUNMAX_DEVICE_CPU;
  if (on_host || !wait) return check_args(plan.problem, current, on_host);
  return check_device_args(*plan.device, plan.problem, current, stream);
}

Status check_stream(const Device& device, const void* stream) {
  if (stream == nullptr || device.info().kind != RUNMAX_DEVICE_CPU) return Status::ok();
  return Status::invalid("stream", "is set, must be NULL on the CPU");
}

Status check_workspace(const Plan& plan, const runmax_args& args, const void* workspace,
                       size_t size) {
  const size_t needed = plan.ledger.size();
  if (needed == 0) return Status::ok();
  if (size < needed) {
    return Status::invalid("workspace_size", "is " + std::to_string(size) + ", must be at least " +
                                                 std::to_string(needed));
  }
  RUNMAX_RETURN_IF_ERROR(require(workspace, "workspace"));
  if ((reinterpret_cast<uintptr_t>(workspace) & kAlignmentMask) != 0) {
    return Status::invalid("workspace", "is not aligned, must be aligned to " +
                                            std::to_string(RUNMAX_WORKSPACE_ALIGNMENT) + " bytes");
  }
  return check_workspace_apart(plan.problem, args, workspace, needed);
}

Status launch(const Plan& plan, const runmax_args& args, void* workspace, void* stream) {
  return plan.kernel->launch({plan.problem, plan.config, plan.ledger, args,
                              static_cast<std::byte*>(workspace), *plan.device, stream});
}

Status execute(const runmax_plan* plan, const runmax_args* args, void* workspace, size_t size,
               void* stream) {
  RUNMAX_RETURN_IF_ERROR(require(plan, "plan"));
  runmax_args current;
  const bool checked = plan->implementation.problem.has(RUNMAX_CHECKED);
  RUNMAX_RETURN_IF_ERROR(check_stream(*plan->implementation.device, stream));
  RUNMAX_RETURN_IF_ERROR(import_args(plan->implementation, args, current, checked, stream));
  RUNMAX_RETURN_IF_ERROR(check_workspace(plan->implementation, current, workspace, size));
  return launch(plan->implementation, current, workspace, stream);
}

Status merge(runmax_device* device, const runmax_problem* problem, const runmax_args* args,
             void* stream) {
  RUNMAX_RETURN_IF_ERROR(require(device, "device"));
  Result<Problem> checked = import_problem(problem);
  if (!checked.is_ok()) return checked.status();
  if (checked.value().raw.op != RUNMAX_MERGE) {
    return Status::invalid("op", "is not RUNMAX_MERGE, must be for runmax_merge");
  }
  Plan plan;
  RUNMAX_RETURN_IF_ERROR(make_plan(std::move(checked.value()), *device->implementation, plan));
  runmax_args current;
  RUNMAX_RETURN_IF_ERROR(check_stream(*device->implementation, stream));
  RUNMAX_RETURN_IF_ERROR(import_args(plan, args, current, false, stream));
  return launch(plan, current, nullptr, stream);
}

Status create_plan(const runmax_problem* problem, runmax_device* device, runmax_plan** plan) {
  RUNMAX_RETURN_IF_ERROR(require(plan, "plan"));
  RUNMAX_RETURN_IF_ERROR(require(device, "device"));
  Result<Problem> checked = import_problem(problem);
  if (!checked.is_ok()) return checked.status();
  auto created = std::make_unique<runmax_plan>();
  RUNMAX_RETURN_IF_ERROR(
      make_plan(std::move(checked.value()), *device->implementation, created->implementation));
  *plan = created.release();
  return Status::ok();
}

}  // namespace
}  // namespace runmax::api

using namespace runmax;
using namespace runmax::api;

runmax_status runmax_tensor_init(runmax_tensor* tensor, runmax_dtype dtype, int32_t rank,
                                 const int64_t* shape) noexcept {
  return guarded([&]() -> Status {
    RUNMAX_RETURN_IF_ERROR(require(tensor, "tensor"));
    RUNMAX_RETURN_IF_ERROR(require(shape, "shape"));
    if (rank < 1 || rank > RUNMAX_MAX_RANK) {
      return Status::invalid("rank", "is " + std::to_string(rank) + ", must be in [1, " +
                                         std::to_string(RUNMAX_MAX_RANK) + "]");
    }
    runmax_tensor result{};
    result.dtype = dtype;
    result.rank = rank;
    int64_t stride = 1;
    for (int32_t i = rank - 1; i >= 0; --i) {
      const int64_t size = shape[i];
      if (size < 0 || (size > 0 && stride > (INT64_C(1) << 62) / size)) {
        return Status::invalid("shape[" + std::to_string(i) + "]",
                               "is " + std::to_string(size) +
                                   ", must not be negative nor lead to more than 2^62 elements");
      }
      result.shape[i] = size;
      result.stride[i] = stride;
      stride *= size > 0 ? size : 1;
    }
    *tensor = result;
    return Status::ok();
  });
}

runmax_status runmax_validate(const runmax_problem* problem) noexcept {
  return guarded([&]() -> Status {
    Result<Problem> checked = import_problem(problem);
    return checked.is_ok() ? Status::ok() : checked.status();
  });
}

runmax_status runmax_supports(const runmax_problem* problem, runmax_device* device) noexcept {
  return guarded([&]() -> Status {
    RUNMAX_RETURN_IF_ERROR(require(device, "device"));
    Result<Problem> checked = import_problem(problem);
    if (!checked.is_ok()) return checked.status();
    Plan plan;
    return make_plan(std::move(checked.value()), *device->implementation, plan);
  });
}

runmax_status runmax_plan_create(const runmax_problem* problem, runmax_device* device,
                                 runmax_plan** plan) noexcept {
  return guarded([&] { return create_plan(problem, device, plan); });
}

void runmax_plan_destroy(runmax_plan* plan) noexcept { delete plan; }

size_t runmax_plan_workspace_size(const runmax_plan* plan) noexcept {
  return plan == nullptr ? 0 : plan->implementation.ledger.size();
}

const char* runmax_plan_explain(const runmax_plan* plan) noexcept {
  const char* text = "";
  (void)guarded([&]() -> Status {
    RUNMAX_RETURN_IF_ERROR(require(plan, "plan"));
    text = plan->implementation.explain();
    return Status::ok();
  });
  return text;
}

runmax_status runmax_plan_get_info(const runmax_plan* plan, runmax_plan_info* info) noexcept {
  return guarded([&]() -> Status {
    RUNMAX_RETURN_IF_ERROR(require(plan, "plan"));
    runmax_plan_info result{};
    count_work(plan->implementation, nullptr, result);
    return export_struct(result, kFirstPlanInfoSize, info);
  });
}

runmax_status runmax_plan_count(const runmax_plan* plan, const runmax_args* args,
                                runmax_plan_info* info) noexcept {
  return guarded([&]() -> Status {
    RUNMAX_RETURN_IF_ERROR(require(plan, "plan"));
    RUNMAX_RETURN_IF_ERROR(require(args, "args"));
    runmax_args current;
    RUNMAX_RETURN_IF_ERROR(import_struct(*args, kFirstArgsSize, current));
    RUNMAX_RETURN_IF_ERROR(check_args(plan->implementation.problem, current, true));
    runmax_plan_info result{};
    count_work(plan->implementation, &current, result);
    return export_struct(result, kFirstPlanInfoSize, info);
  });
}

runmax_status runmax_execute(const runmax_plan* plan, const runmax_args* args, void* workspace,
                             size_t workspace_size, void* stream) noexcept {
  return guarded([&] { return execute(plan, args, workspace, workspace_size, stream); });
}

runmax_status runmax_check_args(const runmax_plan* plan, const runmax_args* args,
                                void* stream) noexcept {
  return guarded([&]() -> Status {
    RUNMAX_RETURN_IF_ERROR(require(plan, "plan"));
    runmax_args current;
    RUNMAX_RETURN_IF_ERROR(check_stream(*plan->implementation.device, stream));
    return import_args(plan->implementation, args, current, true, stream);
  });
}

runmax_status runmax_merge(runmax_device* device, const runmax_problem* problem,
                           const runmax_args* args, void* stream) noexcept {
  return guarded([&] { return merge(device, problem, args, stream); });
}
