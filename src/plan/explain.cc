#include <cstdio>

#include "plan/plan.h"

namespace runmax {

namespace {

template <class... Args>
void line(std::string& text, const char* format, Args... args) {
  char buffer[512];
  std::snprintf(buffer, sizeof buffer, format, args...);
  text += buffer;
  text += '\n';
}

unsigned long long ull(uint64_t value) { return value; }

std::string explain_plan(const Plan& plan) {
  std::string text;
  const Config& c = plan.config;
  line(text, "kernel %s: %s", plan.kernel->name, plan.kernel->summary);
  if (c.q_tile > 0) {
    line(text, "  tiles of %d rows x %d keys, working set %llu bytes in %s", c.q_tile, c.kv_tile,
         ull(c.fast_tile_bytes), c.fast_level);
  }
  if (c.num_splits > 1) {
    line(text, "  keys in %d splits of %llu, merged in order", c.num_splits, ull(c.split_len));
  }
  if (plan.problem.has(RUNMAX_BATCH_INVARIANT)) {
    text +=
        plan.device->info().kind == RUNMAX_DEVICE_CPU
            ? "  batch_invariant: keys are always reduced in fixed chunks, at no extra price\n"
            : "  batch_invariant: keys are never split, so short q leaves part of the GPU idle\n";
  }
  line(text, "workspace %llu bytes", ull(plan.ledger.size()));
  for (const Workspace::Part& part : plan.ledger.parts()) {
    line(text, "  %-12s %llu", part.name, ull(part.bytes));
  }
  text += "kernels considered\n";
  for (const Candidate& candidate : candidates(plan.problem, plan.device->info())) {
    const bool chosen = candidate.kernel == plan.kernel;
    if (candidate.reason.empty()) {
      line(text, "  %s %-16s predicted %.3g s%s", chosen ? "*" : " ", candidate.kernel->name,
           candidate.seconds, chosen ? "" : ", not cheaper");
    } else {
      line(text, "    %-16s no: %s", candidate.kernel->name, candidate.reason.c_str());
    }
  }
  return text;
}

}  // namespace

const char* Plan::explain() const {
  std::call_once(explain_once, [this] { explain_text = explain_plan(*this); });
  return explain_text.c_str();
}

}  // namespace runmax
