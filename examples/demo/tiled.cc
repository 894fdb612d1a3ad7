#include "tiled.h"

#include <stdexcept>

namespace runmax::demo {
namespace {

void check(runmax_status status) {
  if (status != RUNMAX_OK) throw std::runtime_error(runmax_last_error());
}

}  // namespace

Tiled::Tiled(int64_t length, int64_t head_dim, int threads, bool causal) {
  runmax_device_options options{};
  options.struct_size = sizeof options;
  options.max_threads = threads;
  check(runmax_device_create(&options, &device_));

  runmax_problem problem{};
  problem.struct_size = sizeof problem;
  if (causal) problem.flags = RUNMAX_CAUSAL;
  const int64_t shape[] = {1, 1, length, head_dim};  // batch, heads, tokens, head_dim
  for (runmax_tensor* tensor : {&problem.q, &problem.k, &problem.v, &problem.out}) {
    check(runmax_tensor_init(tensor, RUNMAX_F32, 4, shape));
  }
  check(runmax_plan_create(&problem, device_, &plan_));
  check(runmax_device_alloc(device_, runmax_plan_workspace_size(plan_), &workspace_));
}

Tiled::~Tiled() {
  runmax_device_free(device_, workspace_);
  runmax_plan_destroy(plan_);
  runmax_device_destroy(device_);
}

void Tiled::run(const float* q, const float* k, const float* v, float* out) {
  runmax_args args{};
  args.struct_size = sizeof args;
  args.q = q;
  args.k = k;
  args.v = v;
  args.out = out;
  check(runmax_execute(plan_, &args, workspace_, runmax_plan_workspace_size(plan_), nullptr));
}

}  // namespace runmax::demo
