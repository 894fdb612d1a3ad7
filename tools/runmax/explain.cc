// runmax explain: what will be computed, how, and at what cost. Counts are the library's own
// (runmax_plan_info); this file puts them into words and holds them against the measured roofs.
#include <algorithm>
#include <cmath>

#include "commands.h"
#include "device.h"
#include "request.h"
#include "roofs.h"
#include "spec.h"
#include "text.h"

namespace runmax::cli {
namespace {

using nlohmann::ordered_json;

struct Subject {
  runmax_problem problem;
  runmax_plan_info info;
  runmax_roofs roofs;
  std::string plan_text;
};

const char* op_name(int32_t op) {
  return op == RUNMAX_FORWARD ? "forward" : op == RUNMAX_BACKWARD ? "backward" : "merge";
}

Subject explain_file(const Options& options) {
  const Device device = make_device(options);  // outlives the memory that the request holds on it
  Request request(options, open_inputs(options));
  const runmax_problem& problem = request.wants_backward() ? request.backward() : request.forward();
  const Plan plan = make_plan(problem, device.get());
  request.load(device.get());
  runmax_plan_info info{};
  info.struct_size = sizeof info;
  require(runmax_plan_count(plan.get(), &request.args(), &info));
  Subject subject{problem, info, machine_roofs(device.get()), runmax_plan_explain(plan.get())};
  subject.problem.kernel = nullptr;  // it points into the request
  return subject;
}

Subject explain_string(const Options& options) {
  const Spec spec = parse_spec(*options.problem, options.backward);
  if (spec.problem.op == RUNMAX_MERGE) {
    fail("problem", "direction=merge has no plan, must be forward or backward");
  }
  const Device device = spec.make_device(options);
  const Plan plan = make_plan(spec.problem, device.get());
  Subject subject{spec.problem, info_of(plan.get()), machine_roofs(device.get()),
                  runmax_plan_explain(plan.get())};
  subject.problem.kernel = nullptr;
  return subject;
}

// One way to compute, beside the roofs.
struct Way {
  double executed;
  double bytes;
  double memory;
  double saved;

  double intensity() const { return bytes > 0 ? executed / bytes : 0; }
  bool compute_bound(const runmax_roofs& roofs) const {
    return executed * roofs.bytes_per_second >= bytes * roofs.flops_per_second;
  }
  // No run on this machine is faster.
  double seconds(const runmax_roofs& roofs) const {
    return std::max(executed / roofs.flops_per_second, bytes / roofs.bytes_per_second);
  }
};

Way plain_way(const runmax_plan_info& info) {
  return {static_cast<double>(info.executed_plain), static_cast<double>(info.slow_bytes_plain),
          static_cast<double>(info.extra_memory_plain), static_cast<double>(info.saved_plain)};
}
Way tiled_way(const runmax_plan_info& info) {
  return {static_cast<double>(info.executed_tiled), static_cast<double>(info.slow_bytes_tiled),
          static_cast<double>(info.extra_memory_tiled), static_cast<double>(info.saved_tiled)};
}

std::string problem_text(const runmax_problem& problem) {
  const bool packed = problem.q.rank == 3;
  std::string text = fmt::format("{}, {}", op_name(problem.op), dtype_label(problem.q.dtype));
  if (packed) {
    text += fmt::format(", packed, {} sequences, {} query and {} key tokens",
                        std::max<int64_t>(problem.cu_seqlens_q.shape[0] - 1, 0), problem.q.shape[0],
                        problem.k.shape[0]);
  } else {
    text += fmt::format(", batch {}", problem.q.shape[0]);
  }
  text += fmt::format(", q_heads {}, kv_heads {}", problem.q.shape[1], problem.k.shape[1]);
  if (!packed) text += fmt::format(", q_len {}, kv_len {}", problem.q.shape[2], problem.k.shape[2]);
  text += fmt::format(", head_dim {}", problem.q.shape[problem.q.rank - 1]);
  const int64_t head_dim_v = problem.v.shape[problem.v.rank - 1];
  if (head_dim_v != problem.q.shape[problem.q.rank - 1]) {
    text += fmt::format(", head_dim_v {}", head_dim_v);
  }
  if ((problem.flags & RUNMAX_CAUSAL) != 0) text += ", causal";
  return text;
}

std::string table_text(const Subject& subject) {
  const runmax_plan_info& info = subject.info;
  const runmax_roofs& roofs = subject.roofs;
  const Way plain = plain_way(info);
  const Way tiled = tiled_way(info);
  std::string text = fmt::format("{:<26}{:>14}{:>14}\n", "", "plain", "tiled");
  const auto row = [&](const char* name, const std::string& a, const std::string& b) {
    text += fmt::format("{:<26}{:>14}{:>14}\n", name, a, b);
  };
  const std::string required = count_text(static_cast<double>(info.required_operations));
  row("operations required", required, required);
  row("operations executed", count_text(plain.executed), count_text(tiled.executed));
  row("bytes to the slow level", bytes_text(plain.bytes), bytes_text(tiled.bytes));
  row("extra memory", bytes_text(plain.memory), bytes_text(tiled.memory));
  row("saved for backward", bytes_text(plain.saved), bytes_text(tiled.saved));
  row("operations per byte", fmt::format("{:.1f}", plain.intensity()),
      fmt::format("{:.1f}", tiled.intensity()));
  const auto side = [&](const Way& way) {
    return way.compute_bound(roofs) ? "compute-bound" : "memory-bound";
  };
  row("which makes it", side(plain), side(tiled));
  row("no faster than", seconds_text(plain.seconds(roofs)), seconds_text(tiled.seconds(roofs)));
  return text;
}

std::string explain_text(const Subject& subject) {
  const runmax_plan_info& info = subject.info;
  const runmax_roofs& roofs = subject.roofs;
  const char* formula = subject.problem.op == RUNMAX_FORWARD
                            ? "2 * visible pairs * (head_dim + head_dim_v)"
                            : "those of the five products over the visible pairs";
  std::string text =
      "exact, not approximate: every visible query/key pair is scored; only the order of the work\n"
      "changes, tile by tile, with a running maximum and a running sum per row\n\n";
  const std::string pairs = count_text(static_cast<double>(info.visible_pairs));
  text += fmt::format("problem     {}\n", problem_text(subject.problem));
  text += info.from_data != 0
              ? fmt::format("counted     from the data: {} visible pairs\n", pairs)
              : fmt::format(
                    "estimated   from the shapes, lengths and masks that are data taken as "
                    "absent: {} visible pairs\n",
                    pairs);
  text +=
      fmt::format("fast level  {} ({}): a tile of {} rows x {} keys keeps {} there\n",
                  info.fast_level, bytes_text(static_cast<double>(info.fast_level_bytes)),
                  info.q_tile, info.kv_tile, bytes_text(static_cast<double>(info.fast_tile_bytes)));
  text += fmt::format(
      "machine     {}op/s and {}/s, measured on {} thread{}: {:.1f} operations per byte are the "
      "ridge\n\n",
      count_text(roofs.flops_per_second) + (roofs.flops_per_second < 1000 ? " " : ""),
      bytes_text(roofs.bytes_per_second), roofs.threads, roofs.threads == 1 ? "" : "s",
      roofs.flops_per_second / roofs.bytes_per_second);
  text += table_text(subject);
  text += fmt::format(
      "\nRequired are {}, the same for both.\n"
      "Executed: plain works on every pair, tiled on whole tiles that hold a visible one.\n"
      "Bytes: plain writes the scores, reads them, writes the probabilities and reads those;\n"
      "tiled reads k and v once per tile of rows that sees them, and writes out and lse.\n\n",
      formula);
  text += subject.plan_text;
  if (!text.empty() && text.back() != '\n') text += '\n';
  text +=
      "\nWhat does not change: the outputs, up to the order of additions; the parameters; the\n"
      "operation count, which stays quadratic in the length.\n";
  return text;
}

ordered_json json_of(const Subject& subject) {
  const runmax_plan_info& info = subject.info;
  const auto way = [&](const Way& each, uint64_t executed, uint64_t bytes, uint64_t memory,
                       uint64_t saved) {
    return ordered_json{{"required_operations", info.required_operations},
                        {"executed_operations", executed},
                        {"slow_bytes", bytes},
                        {"extra_memory_bytes", memory},
                        {"saved_bytes", saved},
                        {"operations_per_byte", each.intensity()},
                        {"bound", each.compute_bound(subject.roofs) ? "compute" : "memory"},
                        {"least_seconds", each.seconds(subject.roofs)}};
  };
  return {{"exact", true},
          {"op", op_name(subject.problem.op)},
          {"from_data", info.from_data != 0},
          {"visible_pairs", info.visible_pairs},
          {"kernel", info.kernel},
          {"q_tile", info.q_tile},
          {"kv_tile", info.kv_tile},
          {"num_splits", info.num_splits},
          {"threads", info.threads},
          {"fast_level", info.fast_level},
          {"fast_level_bytes", info.fast_level_bytes},
          {"fast_tile_bytes", info.fast_tile_bytes},
          {"plain", way(plain_way(info), info.executed_plain, info.slow_bytes_plain,
                        info.extra_memory_plain, info.saved_plain)},
          {"tiled", way(tiled_way(info), info.executed_tiled, info.slow_bytes_tiled,
                        info.extra_memory_tiled, info.saved_tiled)},
          {"roofs",
           {{"flops_per_second", subject.roofs.flops_per_second},
            {"bytes_per_second", subject.roofs.bytes_per_second},
            {"threads", subject.roofs.threads}}},
          {"plan", subject.plan_text}};
}

}  // namespace

int explain(const Options& options) {
  const Subject subject = options.problem ? explain_string(options) : explain_file(options);
  if (options.json) {
    print_json(json_of(subject));
  } else {
    print(explain_text(subject));
  }
  return kExitDone;
}

}  // namespace runmax::cli
