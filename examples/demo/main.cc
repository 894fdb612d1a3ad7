// The length sweep of the demo: time and peak extra memory of exact attention over growing
// sequences, tiled (runmax) against plain (the score matrix written to memory), as a table and as a
// chart. Every point is measured in a process of its own.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "measure.h"
#include "plain.h"
#include "runmax/runmax.hpp"
#include "svg.h"

namespace runmax::demo {
namespace {

constexpr int64_t kShortest = 1024;
constexpr double kBudget = 2.0 * 1024 * 1024 * 1024;  // of the plain computation
constexpr double kRounding = 1e-5;  // of float32 averages of numbers around 1, with room
constexpr uint64_t kSeed = 1;

struct Options {
  int64_t max_length = 65536;
  double seconds = 120;
  int threads = 0;
  bool peak_memory = false;
  std::string svg;
  std::string note;
};

std::string bytes_text(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1023.5 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, bytes < 9.95 && unit > 0 ? 1 : 0, units[unit]);
}

std::string seconds_text(double seconds) {
  if (seconds < 0.0995) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  return fmt::format("{:.{}f} s", seconds, seconds < 99.5 ? 1 : 0);
}

// Standard normal numbers, the same on every machine (xorshift and Box-Muller).
std::vector<float> random_tensor(int64_t elements, uint64_t seed) {
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  const auto uniform = [&state] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (static_cast<double>(state >> 11) + 0.5) * 0x1p-53;
  };
  std::vector<float> values(static_cast<size_t>(elements));
  for (float& value : values) {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    value = static_cast<float>(radius * std::cos(6.283185307179586 * uniform()));
  }
  return values;
}

// Memory that a child process and its parent both see: how a result gets out of the child.
class SharedFloats {
 public:
  explicit SharedFloats(int64_t elements) : size_(static_cast<size_t>(elements)) {
    void* pointer = mmap(nullptr, size_ * sizeof(float), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pointer == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<float*>(pointer);
  }
  ~SharedFloats() { munmap(data_, size_ * sizeof(float)); }
  SharedFloats(const SharedFloats&) = delete;
  SharedFloats& operator=(const SharedFloats&) = delete;
  std::span<float> span() const { return {data_, size_}; }

 private:
  size_t size_;
  float* data_ = nullptr;
};

struct Tensors {
  Tensors(int64_t n, std::span<float> result)
      : length(n),
        q(random_tensor(n * kHeadDim, kSeed)),
        k(random_tensor(n * kHeadDim, kSeed + 1)),
        v(random_tensor(n * kHeadDim, kSeed + 2)),
        out(result) {
    std::fill(out.begin(), out.end(), 0.0f);  // resident from now on, like the others
  }
  template <class Values>
  auto view(Values& values) {
    return TensorView(values, {1, 1, length, kHeadDim});  // batch, heads, tokens, head_dim
  }

  int64_t length;
  std::vector<float> q, k, v;
  std::span<float> out;
};

Measurement measure_tiled(int64_t length, int threads, bool causal, std::span<float> out) {
  return measure_in_child([=]() -> Setup {
    auto tensors = std::make_shared<Tensors>(length, out);
    return [=]() -> Work {
      auto device = std::make_shared<Device>(Device::create({.max_threads = threads}).value());
      auto attend = std::make_shared<Attention>(*device);
      return [tensors, device, attend, causal] {  // the device outlives its Attention
        Tensors& t = *tensors;
        const Status status = (*attend)({.q = t.view(t.q),
                                         .k = t.view(t.k),
                                         .v = t.view(t.v),
                                         .out = t.view(t.out),
                                         .causal = causal});
        if (!status) throw Error(status);
      };
    };
  });
}

Measurement measure_plain(int64_t length, int threads, std::span<float> out) {
  return measure_in_child([=]() -> Setup {
    auto tensors = std::make_shared<Tensors>(length, out);
    return [=]() -> Work {
      const auto pairs = static_cast<size_t>(length * length);
      auto scores = std::make_shared<std::vector<float>>(pairs);
      auto probs = std::make_shared<std::vector<float>>(pairs);
      return [=] {
        plain_attention(tensors->q.data(), tensors->k.data(), tensors->v.data(), length,
                        scores->data(), probs->data(), tensors->out.data(), threads);
      };
    };
  });
}

double plain_bytes(int64_t length) {  // scores and probabilities
  const auto n = static_cast<double>(length);
  return 2 * n * n * sizeof(float);
}

double available_bytes() {
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("MemAvailable:")) return std::stod(line.substr(13)) * 1024;
  }
  return 0;
}

// One line on a terminal, nothing elsewhere.
void progress(const std::string& text) {
  if (isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r\033[K{}", text);
  std::fflush(stderr);
}

// Keeps the sweep within its time: the work is quadratic, so a length takes four times the last.
class Stopwatch {
 public:
  explicit Stopwatch(double limit) : limit_(limit), begin_(std::chrono::steady_clock::now()) {}
  double left() const {
    const std::chrono::duration<double> used = std::chrono::steady_clock::now() - begin_;
    return limit_ - used.count();
  }

 private:
  double limit_;
  std::chrono::steady_clock::time_point begin_;
};

struct Sweep {
  Series plain_time{"plain", "#c2410c", {}, {}};
  Series tiled_time{"tiled", "#0f766e", {}, {}};
  Series plain_memory = plain_time;
  Series tiled_memory = tiled_time;
};

// Fails the demo: a measurement that did not happen is not a result.
void require(const Measurement& result, const std::string& what) {
  if (result.error[0] != 0) throw std::runtime_error(what + ": " + result.error);
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!(difference <= largest)) largest = difference;  // a nan stays
  }
  return largest;
}

void print_row(const std::string& length, const std::array<std::string, 5>& cells) {
  fmt::print("{:>8} {:>10} {:>12} {:>12} {:>12} {:>13}\n", length, cells[0], cells[1], cells[2],
             cells[3], cells[4]);
  std::fflush(stdout);
}

Sweep run_sweep(const Options& options) {
  print_row("", {"plain", "plain", "tiled", "tiled", "largest"});
  print_row("length", {"time", "memory", "time", "memory", "difference"});
  Sweep sweep;
  const Stopwatch watch(options.seconds);
  for (int64_t length = kShortest; length <= options.max_length; length *= 2) {
    const auto x = static_cast<double>(length);
    const SharedFloats plain_out(length * kHeadDim);
    const SharedFloats tiled_out(length * kHeadDim);
    std::array<std::string, 5> cells;

    const double need = plain_bytes(length);
    const bool fits = need <= kBudget && need * 1.1 < available_bytes();
    if (fits) {
      progress(fmt::format("length {}: plain ...", length));
      const Measurement plain = measure_plain(length, options.threads, plain_out.span());
      require(plain, fmt::format("plain, length {}", length));
      const auto memory = static_cast<double>(plain.extra_bytes);
      sweep.plain_time.measured.push_back({x, plain.seconds});
      sweep.plain_memory.measured.push_back({x, memory});
      cells[0] = seconds_text(plain.seconds);
      cells[1] = bytes_text(memory);
    } else {
      sweep.plain_memory.continued.push_back({x, need});
      cells[0] = "not run";
      cells[1] = bytes_text(need) + "*";
    }

    const double expected =
        sweep.tiled_time.measured.empty() ? 0 : 4 * sweep.tiled_time.measured.back().y;
    if (expected > watch.left()) {
      cells[2] = "not run**";
    } else {
      progress(fmt::format("length {}: tiled ...", length) +
               (expected > 2 ? fmt::format(" about {}", seconds_text(expected)) : ""));
      const Measurement tiled = measure_tiled(length, options.threads, false, tiled_out.span());
      require(tiled, fmt::format("tiled, length {}", length));
      const auto memory = static_cast<double>(tiled.extra_bytes);
      sweep.tiled_time.measured.push_back({x, tiled.seconds});
      sweep.tiled_memory.measured.push_back({x, memory});
      cells[2] = seconds_text(tiled.seconds);
      cells[3] = bytes_text(memory);
      if (fits) {
        const double difference = largest_difference(plain_out.span(), tiled_out.span());
        cells[4] = fmt::format("{:.1e}", difference);
        if (!(difference <= kRounding)) {
          throw std::runtime_error(
              fmt::format("length {}: the results differ by {:.1e}, more than rounding explains",
                          length, difference));
        }
      }
    }
    progress("");
    print_row(std::to_string(length), cells);
    if (cells[2] == "not run**") {
      fmt::print("\n** would take about {}; --seconds N allows for more\n", seconds_text(expected));
      break;
    }
  }
  return sweep;
}

Chart make_chart(const Sweep& sweep, const Options& options) {
  Chart chart;
  chart.title = "Exact attention: same operations, linear memory";
  chart.subtitle = fmt::format(
      "one head, head_dim {}, float32, full attention (no mask), random data, {} threads", kHeadDim,
      options.threads);
  chart.x_label = "sequence length (tokens)";
  chart.x_text = [](double x) { return fmt::format("{:.0f}k", x / 1024); };
  Panel time;
  time.title = "Time";
  time.y_text = [](double y) {
    return y > 0.9 ? fmt::format("{:.0f} s", y) : fmt::format("{:g} ms", y * 1e3);
  };
  time.value_text = seconds_text;
  time.series = {sweep.plain_time, sweep.tiled_time};
  Panel memory;
  memory.title = "Memory beside q, k, v and out";
  memory.y_step = 16;
  memory.y_text = [](double y) {
    const std::string text = bytes_text(y);
    const size_t point = text.find(".0 ");
    return point == std::string::npos ? text : text.substr(0, point) + text.substr(point + 2);
  };
  memory.value_text = bytes_text;
  memory.series = {sweep.plain_memory, sweep.tiled_memory};
  memory.limit = kBudget;
  memory.limit_label = "2 GiB";
  chart.panels = {time, memory};
  chart.notes = {
      "plain: writes all scores, then all probabilities, to memory (8 bytes per query/key pair); "
      "tiled: runmax. Both give the same result up to rounding.",
      "Filled dots are measured, each in its own process; hollow dots are computed, not run."};
  if (!options.note.empty()) chart.notes.push_back(options.note);
  return chart;
}

void lengths(const Options& options) {
  const Sweep sweep = run_sweep(options);
  if (!sweep.plain_memory.continued.empty()) {
    fmt::print("\n*  computed, not run\n");
  }
  const auto last = static_cast<int64_t>(std::sqrt(kBudget / (2 * sizeof(float))));
  fmt::print(
      "\nThe plain computation fits in 2 GiB up to length {}; one token more and it does not.\n",
      last);
  if (options.svg.empty()) return;
  std::ofstream file(options.svg);
  file << render_svg(make_chart(sweep, options));
  file.close();
  if (!file) throw std::runtime_error("--svg: cannot write " + options.svg);
  fmt::print("Chart: {}\n", options.svg);
}

void peak_memory(const Options& options) {
  const int64_t length = options.max_length;
  const SharedFloats out(length * kHeadDim);
  const Measurement result = measure_tiled(length, options.threads, true, out.span());
  require(result, "tiled");
  const double tensors = 4.0 * static_cast<double>(length * kHeadDim * sizeof(float));
  const double beyond = static_cast<double>(result.process_bytes) - tensors;
  fmt::print("q_len = kv_len = {}, one head, head_dim {}, float32, causal, {} threads\n", length,
             kHeadDim, options.threads);
  fmt::print("peak resident memory of the process  {:>10}\n",
             bytes_text(static_cast<double>(result.process_bytes)));
  fmt::print("q, k, v and out                      {:>10}\n", bytes_text(tensors));
  fmt::print("beyond the tensors                   {:>10}  (goal: at most 64 MiB)\n",
             bytes_text(beyond));
  fmt::print("score matrix that was never written  {:>10}\n", bytes_text(plain_bytes(length) / 2));
  fmt::print("time                                 {:>10}\n", seconds_text(result.seconds));
}

int main_or_throw(int argc, char** argv) {
  Options options;
  CLI::App app{"Time and memory of exact attention over growing lengths, plain against tiled."};
  app.add_option("--max-length", options.max_length, "longest sequence: 1024 * 2^n")
      ->check(CLI::Range(kShortest, int64_t{1} << 24))
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "do not start what would end later than this")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--threads", options.threads, "of both (default: what the machine has)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--svg", options.svg, "write the chart to this file");
  app.add_option("--note", options.note, "a last line for the chart, e.g. machine and date");
  app.add_flag("--peak-memory", options.peak_memory,
               "instead: peak memory of one causal call at --max-length");
  CLI11_PARSE(app, argc, argv);
  if (options.threads == 0) {
    options.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  options.peak_memory ? peak_memory(options) : lengths(options);
  return 0;
}

}  // namespace
}  // namespace runmax::demo

int main(int argc, char** argv) {
  try {
    return runmax::demo::main_or_throw(argc, argv);
  } catch (const std::exception& failure) {
    fmt::print(stderr, "runmax_demo: error: {}\n", failure.what());
    return 2;
  }
}
