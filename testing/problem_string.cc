#include "testing/problem_string.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

namespace runmax::testing {
namespace {

using Names = std::vector<std::pair<const char*, int64_t>>;

const Names kDtypes = {
    {"f32", RUNMAX_F32}, {"f64", RUNMAX_F64}, {"bf16", RUNMAX_BF16}, {"f16", RUNMAX_F16}};
const Names kDirections = {{"forward", RUNMAX_FORWARD},
                           {"backward", RUNMAX_BACKWARD},
                           {"merge", RUNMAX_MERGE},
                           {"merge_backward", kMergeBackward}};
constexpr const char* kGradients[] = {
    "d_q", "d_k", "d_v", "d_bias", "d_sink", "d_alibi_slopes", "d_partial_out", "d_partial_lse"};
const Names kAlignments = {{"bottom_right", RUNMAX_ALIGN_BOTTOM_RIGHT},
                           {"top_left", RUNMAX_ALIGN_TOP_LEFT}};

constexpr int64_t kMaxDim = int64_t{1} << 40;

// A value, or what is wrong with the text.
template <class T>
bool parse_number(std::string_view text, T& value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc() && result.ptr == end && !text.empty();
}

std::string shortest(double value) {
  char text[64];
  const auto result = std::to_chars(text, text + sizeof text, value);
  return std::string(text, result.ptr);
}

// One word of the language. `read` gets the text after '=' (nullopt for a bare word) and answers
// what is wrong with it, "" if nothing. `write` gives the whole word, "" for a default.
struct Key {
  std::string name;
  std::function<std::string(ProblemSpec&, std::optional<std::string_view>)> read;
  std::function<std::string(const ProblemSpec&)> write;
};

Key flag(const char* name, bool ProblemSpec::*member) {
  return {name,
          [=](ProblemSpec& spec, std::optional<std::string_view> value) -> std::string {
            if (value) return "is a flag, takes no value";
            spec.*member = true;
            return "";
          },
          [=](const ProblemSpec& spec) { return spec.*member ? std::string(name) : ""; }};
}

// A number in [low, high]. `standard` is what an absent word means.
template <class T>
Key number(const char* name, T ProblemSpec::*member, T low, T high,
           std::function<T(const ProblemSpec&)> standard) {
  const auto print = [](T value) {
    if constexpr (std::is_floating_point_v<T>)
      return shortest(value);
    else
      return std::to_string(value);
  };
  return {name,
          [=](ProblemSpec& spec, std::optional<std::string_view> value) -> std::string {
            T parsed{};
            if (!value || !parse_number(*value, parsed) || !(parsed >= low && parsed <= high)) {
              return "needs a number in [" + print(low) + ", " + print(high) + "]";
            }
            spec.*member = parsed;
            return "";
          },
          [=](const ProblemSpec& spec) {
            return spec.*member == standard(spec) ? std::string()
                                                  : name + ("=" + print(spec.*member));
          }};
}

template <class T>
Key number(const char* name, T ProblemSpec::*member, T low, T high) {
  const T initial = ProblemSpec().*member;
  return number<T>(name, member, low, high, [=](const ProblemSpec&) { return initial; });
}

Key dimension(const char* name, int64_t ProblemSpec::*member, int64_t low) {
  return number<int64_t>(name, member, low, kMaxDim);
}
Key dimension(const char* name, int64_t ProblemSpec::*member, int64_t low,
              int64_t ProblemSpec::*as) {
  return number<int64_t>(name, member, low, kMaxDim,
                         [=](const ProblemSpec& spec) { return spec.*as; });
}

Key choice(const char* name, int64_t ProblemSpec::*member, const Names& names,
           std::function<int64_t(const ProblemSpec&)> standard) {
  return {name,
          [=](ProblemSpec& spec, std::optional<std::string_view> value) -> std::string {
            std::string allowed;
            for (const auto& [word, code] : names) {
              if (value && *value == word) {
                spec.*member = code;
                return "";
              }
              if (!allowed.empty()) allowed += '|';
              allowed += word;
            }
            return "needs one of " + allowed;
          },
          [=](const ProblemSpec& spec) {
            for (const auto& [word, code] : names) {
              if (spec.*member == code && code != standard(spec))
                return name + ("=" + std::string(word));
            }
            return std::string();
          }};
}

// One of a few words. `bare` is what the word without a value means, nullptr if it needs one.
Key word(const char* name, std::string ProblemSpec::*member, std::vector<std::string> allowed,
         const char* bare = nullptr) {
  const std::string initial = ProblemSpec().*member;
  return {name,
          [=](ProblemSpec& spec, std::optional<std::string_view> value) -> std::string {
            if (!value && bare != nullptr) {
              spec.*member = bare;
              return "";
            }
            std::string list;
            for (const std::string& candidate : allowed) {
              if (value && *value == candidate) {
                spec.*member = candidate;
                return "";
              }
              if (!list.empty()) list += '|';
              list += candidate;
            }
            return "needs one of " + list;
          },
          [=](const ProblemSpec& spec) {
            return spec.*member == initial ? std::string() : name + ("=" + spec.*member);
          }};
}

// A tensor that broadcasts to [batch, q_heads, q_len, kv_len].
Key broadcast(const char* name, std::string ProblemSpec::*member) {
  std::vector<std::string> patterns;
  for (int bits = 0; bits < 16; ++bits) {
    std::string pattern = "bhqk";
    for (int i = 0; i < 4; ++i) {
      if (bits >> i & 1) pattern[i] = '1';
    }
    patterns.push_back(pattern);
  }
  return word(name, member, patterns, "bhqk");
}

std::string comma_list(const std::vector<int64_t>& values) {
  std::string text;
  for (int64_t value : values) {
    if (!text.empty()) text += ',';
    text += std::to_string(value);
  }
  return text;
}

bool parse_list(std::string_view text, std::vector<int64_t>& values) {
  while (true) {
    const size_t comma = text.find(',');
    int64_t value = 0;
    if (!parse_number(text.substr(0, comma), value)) return false;
    if (value < INT32_MIN || value > INT32_MAX) return false;
    values.push_back(value);
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

Key per_sequence(const char* name, PerSequence ProblemSpec::*member) {
  return {name,
          [=](ProblemSpec& spec, std::optional<std::string_view> value) -> std::string {
            PerSequence parsed{.present = true, .values = {}};
            if (value && !parse_list(*value, parsed.values)) {
              return "needs 32-bit integers with commas between them, or no value (drawn)";
            }
            spec.*member = std::move(parsed);
            return "";
          },
          [=](const ProblemSpec& spec) {
            const PerSequence& list = spec.*member;
            if (!list.present) return std::string();
            return name + (list.values.empty() ? std::string() : "=" + comma_list(list.values));
          }};
}

// Two integers of which each is at least `low`.
Key pair(const char* name, int64_t ProblemSpec::*first, int64_t ProblemSpec::*second, int64_t low) {
  const int64_t initial = ProblemSpec().*first;
  return {name,
          [=](ProblemSpec& spec, std::optional<std::string_view> value) -> std::string {
            const size_t comma = value ? value->find(',') : std::string_view::npos;
            int64_t a = 0, b = 0;
            if (comma == std::string_view::npos || !parse_number(value->substr(0, comma), a) ||
                !parse_number(value->substr(comma + 1), b) || a < low || b < low || a > kMaxDim ||
                b > kMaxDim) {
              return "needs two numbers A,B of " + std::to_string(low) + " or more";
            }
            spec.*first = a;
            spec.*second = b;
            return "";
          },
          [=](const ProblemSpec& spec) {
            if (spec.*first == initial && spec.*second == initial) return std::string();
            return name + ("=" + std::to_string(spec.*first) + "," + std::to_string(spec.*second));
          }};
}

Key gradient_list() {
  return {"gradients",
          [](ProblemSpec& spec, std::optional<std::string_view> value) -> std::string {
            std::string_view rest = value.value_or("");
            while (true) {
              const std::string_view name = rest.substr(0, rest.find(','));
              const bool known = std::find(std::begin(kGradients), std::end(kGradients), name) !=
                                 std::end(kGradients);
              if (!known) return "needs names like d_q,d_k with commas between them";
              if (name.size() == rest.size()) break;
              rest.remove_prefix(name.size() + 1);
            }
            spec.gradients = *value;
            return "";
          },
          [](const ProblemSpec& spec) {
            return spec.gradients.empty() ? std::string() : "gradients=" + spec.gradients;
          }};
}

Key kernel_name() {
  return {"kernel",
          [](ProblemSpec& spec, std::optional<std::string_view> value) -> std::string {
            if (!value || value->empty()) return "needs a name (runmax list --kernels)";
            spec.kernel = *value;
            return "";
          },
          [](const ProblemSpec& spec) {
            return spec.kernel.empty() ? std::string() : "kernel=" + spec.kernel;
          }};
}

Key isa_name() {
  return {
      "isa",
      [](ProblemSpec& spec, std::optional<std::string_view> value) -> std::string {
        if (!value || runmax_isa_from_name(std::string(*value).c_str()) == 0) {
          return "needs an instruction set (runmax list --devices)";
        }
        spec.isa = *value;
        return "";
      },
      [](const ProblemSpec& spec) { return spec.isa.empty() ? std::string() : "isa=" + spec.isa; }};
}

Key scale_key() {
  return {"scale",
          [](ProblemSpec& spec, std::optional<std::string_view> value) -> std::string {
            double parsed = 0;
            if (!value || !parse_number(*value, parsed) || !std::isfinite(parsed)) {
              return "needs a finite number";
            }
            spec.scale = parsed;
            spec.scale_given = true;
            return "";
          },
          [](const ProblemSpec& spec) {
            return spec.scale_given ? "scale=" + shortest(spec.scale) : std::string();
          }};
}

// Order matters: it is the canonical one, and `follows` keys come after what they follow.
const std::vector<Key>& keys() {
  using S = ProblemSpec;
  constexpr int64_t kMaxInt32 = INT32_MAX;
  static const std::vector<Key> all = {
      choice("direction", &S::direction, kDirections, [](const S&) { return RUNMAX_FORWARD; }),
      dimension("partials", &S::partials, 0),
      word("upstream", &S::upstream, {"d_out", "d_lse"}),
      gradient_list(),
      choice("dtype", &S::dtype, kDtypes, [](const S&) { return RUNMAX_F32; }),
      choice("out_dtype", &S::out_dtype, kDtypes, [](const S& s) { return s.dtype; }),
      choice("bias_dtype", &S::bias_dtype, kDtypes, [](const S& s) { return s.dtype; }),
      dimension("batch", &S::batch, 0),
      dimension("q_heads", &S::q_heads, 0),
      dimension("kv_heads", &S::kv_heads, 0, &S::q_heads),
      dimension("q_len", &S::q_len, 0),
      dimension("kv_len", &S::kv_len, 0, &S::q_len),
      dimension("head_dim", &S::head_dim, 0),
      dimension("head_dim_v", &S::head_dim_v, 0, &S::head_dim),
      flag("packed", &S::packed),
      per_sequence("cu_seqlens_q", &S::cu_seqlens_q),
      per_sequence("cu_seqlens_kv", &S::cu_seqlens_kv),
      flag("causal", &S::causal),
      choice("align", &S::align, kAlignments, [](const S&) { return RUNMAX_ALIGN_BOTTOM_RIGHT; }),
      pair("window", &S::window_left, &S::window_right, -1),
      dimension("sink_tokens", &S::sink_tokens, 0),
      scale_key(),
      number<double>("softcap", &S::softcap, 0, 1e30),
      word("alibi", &S::alibi, {"h", "bh"}, "h"),
      broadcast("bias", &S::bias),
      broadcast("mask", &S::mask),
      flag("sink", &S::sink),
      per_sequence("seqused_q", &S::seqused_q),
      per_sequence("seqused_kv", &S::seqused_kv),
      per_sequence("diagonal_offset", &S::diagonal_offset),
      per_sequence("prefix_len", &S::prefix_len),
      number<int64_t>("segments", &S::segments, 0, kMaxInt32),
      pair("block_size", &S::block_q, &S::block_kv, 0),
      number<double>("block_density", &S::block_density, 0, 1),
      word("block_heads", &S::block_heads, {"1", "kv", "q"}),
      number<double>("dropout", &S::dropout, 0, 1),
      number<uint64_t>("seed", &S::seed, 0, UINT64_MAX),
      number<uint64_t>("offset", &S::offset, 0, UINT64_MAX),
      flag("lse_lo", &S::lse_lo),
      flag("no_lse", &S::no_lse),
      flag("keep_unused", &S::keep_unused),
      flag("batch_invariant", &S::batch_invariant),
      flag("deterministic", &S::deterministic),
      number<int64_t>("num_splits", &S::num_splits, 0, kMaxInt32),
      kernel_name(),
      isa_name(),
      number<int64_t>("threads", &S::threads, 0, 4096),
      word("layout", &S::layout,
           {"bhsd", "bshd", "bhds", "padded", "strided", "negative", "broadcast"}),
      number<int64_t>("alignment", &S::alignment, 0, 4096),
      flag("v_in_k", &S::v_in_k),
      word("poison", &S::poison, {"nan", "inf", "1e30", "zero"}),
      flag("poison_hidden", &S::poison_hidden),
      word("fill", &S::fill,
           {"normal", "hostile", "onehot", "counting", "huge", "ones", "nonfinite"}),
      number<uint64_t>("data_seed", &S::data_seed, 0, UINT64_MAX),
  };
  return all;
}

const Key* find_key(std::string_view name) {
  for (const Key& key : keys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

// What one word cannot know. "" if all is well.
std::string check_whole(const ProblemSpec& spec) {
  if (spec.alignment != 0 && (spec.alignment & (spec.alignment - 1)) != 0) {
    return "alignment: is " + std::to_string(spec.alignment) + ", must be a power of two";
  }
  if (spec.alignment != 0 && spec.alignment < size_of(static_cast<runmax_dtype>(spec.dtype))) {
    return "alignment: is " + std::to_string(spec.alignment) +
           ", must be 0 or at least the element";
  }
  if (spec.v_in_k && (spec.head_dim_v > spec.head_dim || spec.layout == "bhds")) {
    return "v_in_k: needs head_dim_v at most head_dim, and a layout other than bhds";
  }
  if (spec.no_lse && spec.is_backward()) {
    return "no_lse: gradients are computed from lse, leave it out";
  }
  if (!spec.is_backward() && !(spec.upstream.empty() && spec.gradients.empty())) {
    return spec.upstream.empty() ? "gradients: needs direction=backward or merge_backward"
                                 : "upstream: needs direction=backward or merge_backward";
  }
  if (spec.lse_lo && spec.no_lse) return "lse_lo: needs lse, leave no_lse out";
  if ((spec.block_q == 0) != (spec.block_kv == 0))
    return "block_size: needs two numbers of 1 or more";
  const auto check_list = [&](const char* name, const PerSequence& list, int64_t length) {
    if (list.values.empty() || static_cast<int64_t>(list.values.size()) == length)
      return std::string();
    return std::string(name) + ": has " + std::to_string(list.values.size()) +
           " entries, must have " + std::to_string(length);
  };
  std::string error = check_list("seqused_q", spec.seqused_q, spec.batch);
  if (error.empty()) error = check_list("seqused_kv", spec.seqused_kv, spec.batch);
  if (error.empty()) error = check_list("diagonal_offset", spec.diagonal_offset, spec.batch);
  if (error.empty()) error = check_list("prefix_len", spec.prefix_len, spec.batch);
  if (error.empty()) error = check_list("cu_seqlens_q", spec.cu_seqlens_q, spec.batch + 1);
  if (error.empty()) error = check_list("cu_seqlens_kv", spec.cu_seqlens_kv, spec.batch + 1);
  if (!error.empty()) return error;
  if (!spec.packed && (spec.cu_seqlens_q.present || spec.cu_seqlens_kv.present)) {
    return "cu_seqlens_q: needs packed";
  }
  return "";
}

}  // namespace

ParsedProblem parse_problem(std::string_view text) {
  ParsedProblem result;
  ProblemSpec& spec = result.spec;
  std::vector<std::string_view> seen;
  const auto was_seen = [&](std::string_view name) {
    for (std::string_view word : seen) {
      if (word == name) return true;
    }
    return false;
  };

  constexpr const char* kBlanks = " \t\n\r";
  while (true) {
    const size_t begin = text.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) break;
    text.remove_prefix(begin);
    const std::string_view token = text.substr(0, text.find_first_of(kBlanks));
    text.remove_prefix(token.size());

    const size_t equals = token.find('=');
    const std::string_view name = token.substr(0, equals);
    const Key* key = find_key(name);
    if (key == nullptr) {
      std::string allowed;
      for (const Key& known : keys()) allowed += " " + known.name;
      // A hostile word must not break the one-line promise.
      std::string shown(name.substr(0, 40));
      for (char& c : shown) {
        if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
      }
      result.error = "problem: " + shown + ": unknown word, allowed are" + allowed;
      return result;
    }
    if (was_seen(key->name)) {
      result.error = "problem: " + key->name + ": given twice, once is allowed";
      return result;
    }
    seen.push_back(key->name);
    const std::optional<std::string_view> value =
        equals == std::string_view::npos ? std::nullopt : std::optional(token.substr(equals + 1));
    const std::string error = key->read(spec, value);
    if (!error.empty()) {
      result.error = "problem: " + key->name + ": " + error;
      return result;
    }
  }

  if (!was_seen("kv_heads")) spec.kv_heads = spec.q_heads;
  if (!was_seen("kv_len")) spec.kv_len = spec.q_len;
  if (!was_seen("head_dim_v")) spec.head_dim_v = spec.head_dim;
  if (!was_seen("out_dtype")) spec.out_dtype = spec.dtype;
  if (!was_seen("bias_dtype")) spec.bias_dtype = spec.dtype;
  const std::string error = check_whole(spec);
  if (!error.empty()) result.error = "problem: " + error;
  return result;
}

std::string to_string(const ProblemSpec& spec) {
  std::string text;
  for (const Key& key : keys()) {
    const std::string word = key.write(spec);
    if (!word.empty() && !text.empty()) text += ' ';
    text += word;
  }
  return text;
}

ProblemSpec problem(std::string_view text) {
  ParsedProblem parsed = parse_problem(text);
  if (!parsed.ok()) {
    std::fprintf(stderr, "%s\nin: %.*s\n", parsed.error.c_str(), static_cast<int>(text.size()),
                 text.data());
    std::abort();
  }
  return parsed.spec;
}

uint64_t isa_mask(const std::string& isa) {
  const uint64_t bit = isa.empty() ? 0 : runmax_isa_from_name(isa.c_str());
  return bit == 0 ? 0 : (bit << 1) - 1;
}

runmax_dtype dtype_from_name(std::string_view name) {
  for (const auto& [word, code] : kDtypes) {
    if (name == word) return static_cast<runmax_dtype>(code);
  }
  return RUNMAX_DTYPE_NONE;
}

const char* name_of(runmax_dtype dtype) {
  for (const auto& [word, code] : kDtypes) {
    if (dtype == code) return word;
  }
  return dtype == RUNMAX_I32 ? "i32" : dtype == RUNMAX_BOOL ? "bool" : "?";
}

int64_t size_of(runmax_dtype dtype) {
  switch (dtype) {
    case RUNMAX_F64:
      return 8;
    case RUNMAX_F32:
    case RUNMAX_I32:
      return 4;
    case RUNMAX_BF16:
    case RUNMAX_F16:
      return 2;
    case RUNMAX_BOOL:
      return 1;
    default:
      return 0;
  }
}

}  // namespace runmax::testing
