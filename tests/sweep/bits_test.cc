// What must not change a bit: threads, repetition, poison, memory, alignment, layout; and with
// batch_invariant, what else is computed beside a row.
#include <gtest/gtest.h>

#include <cstring>

#include "testing/element.h"
#include "tests/sweep/sweep.h"

namespace runmax::testing {
namespace {

using Bytes = std::vector<std::byte>;

// The outputs in logical order, whatever the layout, so that cases can be held against each other.
Bytes output_bits(const Case& c) {
  Bytes all;
  for (const char* name : {"out", "lse", "lse_lo"}) {
    if (!c.has(name)) continue;
    const Buffer& b = c.buffer(name);
    const auto size = static_cast<size_t>(size_of(b.tensor.dtype));
    for_each_element(b.tensor, [&](const int64_t*, int64_t offset) {
      const auto* from =
          static_cast<const std::byte*>(b.pointer()) + offset * static_cast<int64_t>(size);
      all.insert(all.end(), from, from + size);
    });
  }
  return all;
}

Bytes run_bits(const std::string& text, bool through_device_memory = false) {
  Case c(text);
  const Outcome outcome = execute(c, through_device_memory);
  EXPECT_TRUE(outcome.ok()) << outcome.text() << "\n  " << text;
  const Bytes bits = output_bits(c);
  EXPECT_FALSE(bits.empty()) << text;
  return bits;
}

// Problems that cover every kernel, type and feature that could make a difference.
std::vector<std::string> problems() {
  const char* shapes[] = {
      "batch=2 q_heads=4 kv_heads=2 q_len=230 kv_len=300 head_dim=24 causal sink lse_lo",
      "batch=3 q_heads=4 kv_heads=2 q_len=33 kv_len=150 head_dim=9 seqused_q seqused_kv "
      "window=40,3 "
      "softcap=8 alibi bias=1hqk fill=hostile",
      "q_heads=2 q_len=2 kv_len=9000 head_dim=16 seqused_kv=8999",
      "q_heads=2 q_len=3 kv_len=1000 head_dim=32 num_splits=5 lse_lo",
      "batch=4 q_heads=2 q_len=40 kv_len=90 head_dim=16 packed causal dropout=0.2 seed=3 mask=11qk",
      "batch=2 q_heads=2 q_len=65 kv_len=129 head_dim=16 block_size=16,16 segments=2 prefix_len",
  };
  std::vector<std::string> all;
  for (const Kernel& kernel : kernels_here()) {
    if (kernel.op != RUNMAX_FORWARD) continue;
    for (const char* dtype : {"f32", "f64", "bf16", "f16"}) {
      for (const char* shape : shapes) {
        const std::string text = std::string(shape) + " dtype=" + dtype + " kernel=" + kernel.name +
                                 " isa=" + kernel.levels.front();
        if (takes(text)) all.push_back(text);
      }
    }
  }
  EXPECT_GE(all.size(), 24u);
  return all;
}

TEST(Bits, thread_count_and_repetition) {
  for (const std::string& text : problems()) {
    const Bytes first = run_bits(text + " threads=1");
    for (int threads : {1, 2, 3, 7, 16}) {
      EXPECT_EQ(run_bits(text + " threads=" + std::to_string(threads)), first)
          << text << " " << threads;
    }
  }
}

// A caller's own loop: tasks last to first, slots handed out round robin.
TEST(Bits, any_parallel_for) {
  static int64_t tasks_run = 0;
  runmax_device_options options{};
  options.struct_size = sizeof options;
  options.max_threads = 3;
  options.parallel_for = [](void*, int64_t tasks, runmax_task task, void* context) {
    for (int64_t n = tasks; n-- > 0; ++tasks_run) task(context, n, static_cast<int32_t>(n % 3));
  };
  runmax_device* device = nullptr;
  ASSERT_EQ(runmax_device_create(&options, &device), RUNMAX_OK) << runmax_last_error();
  for (const std::string& text : problems()) {
    Case c(text);
    const Outcome outcome = execute(c, device);
    ASSERT_TRUE(outcome.ok()) << outcome.text() << "\n  " << text;
    EXPECT_EQ(output_bits(c), run_bits(text)) << text;
  }
  EXPECT_GT(tasks_run, 0);
  runmax_device_destroy(device);
}

TEST(Bits, poison_in_unused_storage) {
  for (const std::string& text : problems()) {
    for (const char* layout : {"padded", "strided", "negative"}) {
      const std::string words = text + " layout=" + layout;
      const Bytes clean = run_bits(words + " poison=zero");
      for (const char* poison : {"nan", "inf", "1e30"}) {
        EXPECT_EQ(run_bits(words + " poison=" + poison), clean) << words << " " << poison;
      }
    }
  }
}

TEST(Bits, layout_and_alignment) {
  for (const std::string& text : problems()) {
    const Bytes plain = run_bits(text);
    for (const char* layout : {"bshd", "bhds", "padded", "strided", "negative"}) {
      EXPECT_EQ(run_bits(text + " layout=" + layout), plain) << text << " " << layout;
    }
    for (int alignment : {16, 64, 256}) {
      EXPECT_EQ(run_bits(text + " alignment=" + std::to_string(alignment)), plain) << text;
    }
  }
}

TEST(Bits, memory_of_the_device) {
  for (const std::string& text : problems()) {
    EXPECT_EQ(run_bits(text, /*through_device_memory=*/true), run_bits(text)) << text;
  }
}

// ------------------------------------------------------------------------------ batch invariance

const void* advanced(const void* base, int64_t elements, runmax_dtype dtype) {
  return static_cast<const std::byte*>(base) + elements * size_of(dtype);
}

struct Rows {
  Bytes out, lse;
};

// Rows [begin, end) of batch entry b alone, keys and geometry unchanged.
Rows rows_alone(const Case& whole, int64_t b, int64_t begin, int64_t end) {
  runmax_problem p = whole.problem();
  runmax_args a = whole.args();
  const int64_t q_len = p.q.shape[2];
  const int64_t kv_len = p.k.shape[2];
  for (runmax_tensor runmax_problem::*t :
       {&runmax_problem::q, &runmax_problem::k, &runmax_problem::v, &runmax_problem::out,
        &runmax_problem::lse}) {
    (p.*t).shape[0] = 1;
  }
  p.q.shape[2] = p.out.shape[2] = p.lse.shape[2] = end - begin;
  a.q = advanced(a.q, b * p.q.stride[0] + begin * p.q.stride[2], p.q.dtype);
  a.k = advanced(a.k, b * p.k.stride[0], p.k.dtype);
  a.v = advanced(a.v, b * p.v.stride[0], p.v.dtype);
  if (p.bias.dtype != RUNMAX_DTYPE_NONE) {
    p.bias.shape[0] = 1;
    p.bias.shape[2] = end - begin;
    a.bias = advanced(a.bias, b * p.bias.stride[0] + begin * p.bias.stride[2], p.bias.dtype);
  }
  const int32_t offset = static_cast<int32_t>(kv_len - q_len + begin);
  const int64_t one = 1;
  runmax_tensor_init(&p.diagonal_offset, RUNMAX_I32, 1, &one);
  a.diagonal_offset = &offset;
  OutputCopy outputs(p, a);
  const Outcome outcome = execute(outputs.problem, outputs.args, device_for(whole.spec()));
  EXPECT_TRUE(outcome.ok()) << outcome.text();
  return {outputs.out, outputs.lse};
}

// The same rows as the whole batch computed them.
Rows rows_of_whole(const OutputCopy& whole, int64_t b, int64_t begin, int64_t end) {
  const runmax_tensor& out = whole.problem.out;
  const runmax_tensor& lse = whole.problem.lse;
  Rows rows;
  for (int64_t h = 0; h < out.shape[1]; ++h) {
    const int64_t first = (b * out.shape[1] + h) * out.shape[2] + begin;
    const auto append = [&](Bytes& to, const Bytes& from, int64_t size) {
      to.insert(to.end(), from.begin() + first * size, from.begin() + (first + end - begin) * size);
    };
    append(rows.out, whole.out, out.shape[3] * size_of(out.dtype));
    append(rows.lse, whole.lse, size_of(lse.dtype));
  }
  return rows;
}

TEST(Bits, batch_invariance) {
  int64_t compared = 0;
  for (const Kernel& kernel : kernels_here()) {
    if (kernel.op != RUNMAX_FORWARD) continue;
    for (const char* dtype : {"f32", "f64", "bf16", "f16"}) {
      for (const char* shape :
           {"q_heads=4 kv_heads=2 q_len=150 kv_len=310 head_dim=20 causal",
            "q_heads=2 q_len=130 kv_len=1100 head_dim=16 window=700,5 sink_tokens=9 sink softcap=9 "
            "alibi",
            "q_heads=2 kv_heads=1 q_len=129 kv_len=140 head_dim=8 bias fill=hostile",
            "q_heads=2 q_len=130 kv_len=4230 head_dim=4"}) {
        const std::string text = std::string(shape) + " batch=17 batch_invariant dtype=" + dtype +
                                 " kernel=" + kernel.name + " isa=" + kernel.levels.front();
        if (!takes(text)) continue;
        Case c(text);
        OutputCopy whole(c.problem(), c.args());
        const Outcome outcome = execute(whole.problem, whole.args, device_for(c.spec()));
        ASSERT_TRUE(outcome.ok()) << outcome.text() << "\n  " << text;
        const int64_t q_len = c.spec().q_len;
        for (int64_t b : {0, 7, 16}) {
          for (int64_t chunk : {int64_t{1}, int64_t{7}, int64_t{128}, q_len}) {
            // Every row of large chunks, some of the others.
            const int64_t step = chunk >= 7 ? chunk : 29;
            for (int64_t begin = 0; begin < q_len; begin += step) {
              const int64_t end = std::min(begin + chunk, q_len);
              const Rows alone = rows_alone(c, b, begin, end);
              const Rows among = rows_of_whole(whole, b, begin, end);
              ASSERT_EQ(alone.out, among.out) << text << " batch entry " << b << " rows " << begin;
              ASSERT_EQ(alone.lse, among.lse) << text << " batch entry " << b << " rows " << begin;
              ++compared;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 100);
}

// Without the flag the gate still holds for any cut.
TEST(Bits, splits_agree_with_the_whole_within_the_gate) {
  for (const Kernel& kernel : kernels_here()) {
    if (kernel.op != RUNMAX_FORWARD) continue;
    for (const char* dtype : {"f32", "f64", "bf16", "f16"}) {
      const std::string text =
          std::string("q_heads=2 q_len=5 kv_len=700 head_dim=16 causal sink lse_lo dtype=") +
          dtype + " kernel=" + kernel.name + " isa=" + kernel.levels.front();
      if (!takes(text)) continue;
      for (int splits : {1, 2, 3, 4, 8, 16, 700}) {
        CheckOptions options;
        options.with_plain = false;
        const CheckReport report =
            check(problem(text + " num_splits=" + std::to_string(splits)), options);
        EXPECT_TRUE(report.passed()) << report.text();
      }
    }
  }
}

// Two threads, one plan, a workspace each.
TEST(Bits, the_case_itself_is_the_same_everywhere) {
  // Known first elements: data come from integer arithmetic, so no machine may differ.
  const Case c("q_len=2 head_dim=2 data_seed=7");
  const std::vector<double> q = c.values("q");
  EXPECT_EQ(q, Case("q_len=2 head_dim=2 data_seed=7 layout=strided poison=inf").values("q"));
  EXPECT_NE(q, Case("q_len=2 head_dim=2 data_seed=8").values("q"));
}

}  // namespace
}  // namespace runmax::testing
