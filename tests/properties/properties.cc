#include "tests/properties/properties.h"

#include "testing/element.h"

namespace runmax::testing {
namespace {

template <class T>
T one_of(std::initializer_list<T> values) {
  return *rc::gen::elementOf(std::vector<T>(values));
}

// Within [low, high], whatever size rapidcheck has reached.
int64_t within(int64_t low, int64_t high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<int64_t>(low, high + 1));
}

bool coin() { return within(0, 1) == 1; }
bool rarely() { return within(0, 3) == 0; }

std::string broadcast() {
  std::string pattern = "bhqk";
  for (char& letter : pattern) {
    if (rarely()) letter = '1';
  }
  return pattern;
}

void draw_shape(ProblemSpec& s) {
  s.dtype = one_of<int64_t>({RUNMAX_F32, RUNMAX_F64, RUNMAX_BF16, RUNMAX_F16});
  s.out_dtype = rarely() ? int64_t{RUNMAX_F32} : s.dtype;
  s.bias_dtype = coin() ? int64_t{RUNMAX_F32} : s.dtype;
  s.batch = within(1, 3);
  s.kv_heads = within(1, 2);
  s.q_heads = s.kv_heads * within(1, 3);
  s.q_len = rarely() ? within(0, 2) : within(1, 70);
  s.kv_len = rarely() ? within(0, 5) : rarely() ? within(500, 700) : within(1, 150);
  s.head_dim = within(1, 40);
  s.head_dim_v = within(1, 40);
  s.isa = *rc::gen::elementOf(isa_levels());
  s.threads = within(1, 3);
  s.layout = one_of<std::string>({"bhsd", "bshd", "bhds", "strided", "negative"});
  s.fill = one_of<std::string>({"normal", "hostile", "onehot", "counting", "huge"});
  s.data_seed = static_cast<uint64_t>(within(1, 1000));
}

void draw_orderless(ProblemSpec& s) {
  if (rarely()) {
    s.scale_given = true;
    s.scale = one_of({0.0, -0.3, 0.5, 1.0});
  }
  if (rarely()) s.softcap = static_cast<double>(within(1, 30));
  if (coin()) s.bias = broadcast();
  if (rarely()) s.mask = broadcast();
  if (rarely()) s.segments = within(1, 4);
  s.sink = coin();
  s.lse_lo = coin();
  s.batch_invariant = coin();
  if (!s.batch_invariant && coin()) s.num_splits = within(1, 7);
}

void draw_positional(ProblemSpec& s) {
  s.causal = coin();
  if (rarely()) s.align = RUNMAX_ALIGN_TOP_LEFT;
  if (coin()) s.window_left = within(0, 80);
  if (rarely()) s.window_right = within(0, 80);
  if (coin()) s.sink_tokens = within(0, 5);
  if (rarely()) s.alibi = coin() ? "h" : "bh";
}

void draw_data_dependent(ProblemSpec& s) {
  s.seqused_q.present = rarely();
  s.seqused_kv.present = rarely();
  s.prefix_len.present = rarely();
  s.diagonal_offset.present = rarely();
  if (rarely()) {
    s.block_q = within(1, 40);
    s.block_kv = within(1, 40);
    s.block_heads = one_of<std::string>({"1", "kv", "q"});
  }
  if (rarely()) {
    s.dropout = one_of({0.1, 0.7});
    s.seed = static_cast<uint64_t>(within(1, 1000));
  }
}

bool inside(const runmax_tensor& tensor, const int64_t* index) {
  for (int d = 0; d < tensor.rank; ++d) {
    if (index[d] >= tensor.shape[d]) return false;
  }
  return true;
}

}  // namespace

void showValue(const ProblemSpec& spec, std::ostream& os) { os << to_string(spec); }

rc::Gen<ProblemSpec> problems(Options options) {
  return rc::gen::exec([options] {
    ProblemSpec s;
    draw_shape(s);
    draw_orderless(s);
    if (options != Options::kAnyOrder) draw_positional(s);
    if (options == Options::kAll) draw_data_dependent(s);
    return s;
  });
}

void run(Case& c) {
  const Outcome outcome = execute(c);
  if (!outcome.ok()) RC_FAIL(outcome.text() + "\n  " + to_string(c.spec()));
}

void run(const runmax_problem& problem, const runmax_args& args, runmax_device* device) {
  const Outcome outcome = execute(problem, args, device);
  if (!outcome.ok()) RC_FAIL(outcome.text());
}

View::View(const Case& as, const Case& of) : problem(as.problem()), args(as.args()) {
  for (runmax_tensor runmax_problem::*t :
       {&runmax_problem::out, &runmax_problem::lse, &runmax_problem::lse_lo}) {
    std::memcpy((problem.*t).stride, (of.problem().*t).stride, sizeof(problem.*t).stride);
  }
  args.out = of.args().out;
  args.lse = of.args().lse;
  args.lse_lo = of.args().lse_lo;
}

void require_within_gate(const View& view, const reference::Forward& oracle) {
  const Comparison result = compare_all(view.problem, view.args, oracle);
  if (!result.passed) RC_FAIL(result.message);
}

void require_same_bits(const View& a, const View& b) {
  const auto compare = [](const char* name, const runmax_tensor& ta, const void* pa,
                          const runmax_tensor& tb, const void* pb) {
    if (ta.dtype == RUNMAX_DTYPE_NONE) return;
    const int64_t size = size_of(ta.dtype);
    for_each_element(ta, [&](const int64_t* index, int64_t at_a) {
      int64_t at_b = 0;
      for (int d = 0; d < tb.rank; ++d) at_b += index[d] * tb.stride[d];
      const auto* x = static_cast<const std::byte*>(pa) + at_a * size;
      const auto* y = static_cast<const std::byte*>(pb) + at_b * size;
      if (std::memcmp(x, y, static_cast<size_t>(size)) == 0) return;
      std::string text = std::string(name) + "[";
      for (int d = 0; d < ta.rank; ++d)
        text += std::to_string(index[d]) + (d + 1 < ta.rank ? ", " : "]");
      RC_FAIL(text + " is " + std::to_string(load(ta.dtype, x, 0)) + " and " +
              std::to_string(load(tb.dtype, y, 0)));
    });
  };
  const runmax_problem &p = a.problem, &q = b.problem;
  compare("out", p.out, a.args.out, q.out, b.args.out);
  compare("lse", p.lse, a.args.lse, q.lse, b.args.lse);
  compare("lse_lo", p.lse_lo, a.args.lse_lo, q.lse_lo, b.args.lse_lo);
}

double element(const Case& c, const std::string& name, const int64_t* index) {
  const Buffer& buffer = c.buffer(name);
  int64_t offset = 0;
  for (int d = 0; d < buffer.tensor.rank; ++d) offset += index[d] * buffer.tensor.stride[d];
  return load(buffer.tensor.dtype, buffer.pointer(), offset);
}

void embed(const Case& from, Case& to) {
  for (const Operand& operand : operands()) {
    if (!from.has(operand.name) || operand.is_output(from.problem())) continue;
    const runmax_tensor& corner = from.buffer(operand.name).tensor;
    to.fill(operand.name, [&](const int64_t* index) {
      return element(inside(corner, index) ? from : to, operand.name, index);
    });
  }
}

}  // namespace runmax::testing
