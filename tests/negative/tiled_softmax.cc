#include "tests/negative/tiled_softmax.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "testing/element.h"

namespace runmax::negative {
namespace {

using testing::Case;

constexpr float kInf = std::numeric_limits<float>::infinity();

float in_type(int32_t dtype, float x) { return static_cast<float>(testing::rounded(dtype, x)); }

// Towards zero, where rounding should be to nearest.
float truncated(int32_t dtype, float x) {
  const float nearest = in_type(dtype, x);
  if (std::fabs(nearest) <= std::fabs(x)) return nearest;
  // One step of the type below: halve the distance until it rounds the other way.
  float low = 0, high = x;
  for (int n = 0; n < 40; ++n) {
    const float middle = low + (high - low) / 2;
    (std::fabs(in_type(dtype, middle)) < std::fabs(nearest) ? low : high) = middle;
  }
  return in_type(dtype, low);
}

// The running state of one row over some keys.
struct State {
  float max = -kInf;
  float sum = 0;
  std::vector<float> out;
};

class Row {
 public:
  Row(const Case& c, Fault fault, int64_t b, int64_t h, int64_t i)
      : c_(c), p_(c.problem()), fault_(fault), b_(b), h_(h), i_(i) {
    const int64_t q_heads = p_.q.shape[1], kv_heads = p_.k.shape[1];
    head_ = is(Fault::kWrongHead) ? h % kv_heads : h / (q_heads / kv_heads);
    kv_used_ = c.kv_used(b);
    q_used_ = c.q_used(b);
    offset_ = p_.diagonal_alignment == RUNMAX_ALIGN_TOP_LEFT || is(Fault::kTopLeft)
                  ? 0
                  : kv_used_ - q_used_;
    const double dim = static_cast<double>(p_.q.shape[3]);
    const double padded = std::ceil(dim / 8) * 8;
    scale_ = static_cast<float>(p_.present & RUNMAX_PRESENT_SCALE
                                    ? p_.scale
                                    : 1 / std::sqrt(is(Fault::kScaleOfPaddedDim) ? padded : dim));
  }

  void compute(Case& c) {
    const int64_t splits = std::max(1, p_.num_splits);
    const int64_t tiles = (kv_used_ + kTile - 1) / kTile;
    const int64_t per_split = (tiles + splits - 1) / splits * kTile;
    std::vector<State> parts;
    for (int64_t s = 0; s < splits; ++s) {
      if (is(Fault::kLastSplitDropped) && s > 0 && s == splits - 1) break;
      parts.push_back(over(s * per_split, std::min((s + 1) * per_split, kv_used_)));
    }
    finish(c, parts);
  }

 private:
  bool is(Fault fault) const { return fault_ == fault; }

  bool visible(int64_t j) const {
    const int64_t diagonal = i_ + offset_;
    if (p_.flags & RUNMAX_CAUSAL) {
      const int64_t slip = is(Fault::kCausalOneMore) ? 1 : is(Fault::kCausalOneLess) ? -1 : 0;
      if (j > diagonal + slip) return false;
    }
    if (p_.present & RUNMAX_PRESENT_WINDOW_RIGHT && j > diagonal + p_.window_right) return false;
    if (p_.present & RUNMAX_PRESENT_WINDOW_LEFT) {
      const int64_t slip = is(Fault::kWindowOneMore) ? 1 : is(Fault::kWindowOneLess) ? -1 : 0;
      const bool leading = j < p_.sink_tokens && !is(Fault::kSinkTokensIgnored);
      if (j < diagonal - p_.window_left - slip && !leading) return false;
    }
    return true;
  }

  float bias(int64_t j) const {
    if (!c_.has("bias") || is(Fault::kBiasIgnored)) return 0;
    const runmax_tensor& t = p_.bias;
    // The fault: a bias that is shared by the heads, indexed as if each had its own.
    const int64_t batch =
        is(Fault::kBiasHeadStride) && t.shape[1] == 1 ? (b_ * p_.q.shape[1] + h_) % t.shape[0] : b_;
    const auto clip = [&](int d, int64_t x) { return t.shape[d] == 1 ? 0 : x; };
    return static_cast<float>(
        c_.at("bias", {clip(0, batch), clip(1, h_), clip(2, i_), clip(3, j)}));
  }

  float score(int64_t j) const {
    float dot = 0;
    for (int64_t d = 0; d < p_.q.shape[3]; ++d) {
      dot += static_cast<float>(c_.at("q", {b_, h_, i_, d})) *
             static_cast<float>(c_.at("k", {b_, head_, j, d}));
    }
    float s = dot * scale_;
    if (is(Fault::kScoresIn16Bits)) s = in_type(p_.q.dtype, s);
    if (p_.softcap != 0 && !is(Fault::kSoftcapAfterMask)) s = cap(s);
    if (c_.has("alibi_slopes")) {
      const float slope =
          static_cast<float>(p_.alibi_slopes.rank == 1 ? c_.at("alibi_slopes", {h_})
                                                       : c_.at("alibi_slopes", {b_, h_}));
      const int64_t position = is(Fault::kAlibiFromQueryIndex) ? i_ : i_ + offset_;
      s -= slope * static_cast<float>(std::abs(position - j));
    }
    s += bias(j);
    if (!visible(j)) s = is(Fault::kFiniteStandIn) ? -5e4f : -kInf;
    if (p_.softcap != 0 && is(Fault::kSoftcapAfterMask)) s = cap(s);
    return s;
  }

  float cap(float s) const {
    const float c = static_cast<float>(p_.softcap);
    return c * std::tanh(s / c);
  }

  State over(int64_t begin, int64_t end) const {
    State state;
    state.out.assign(static_cast<size_t>(p_.v.shape[3]), 0.0f);
    if (is(Fault::kReadsPastLength)) end = std::min(end + 1, p_.k.shape[2]);
    for (int64_t first = begin; first < end; first += kTile) {
      const int64_t last = std::min(first + kTile, end);
      if (is(Fault::kDroppedTail) && last - first < kTile) break;
      if (is(Fault::kDroppedFirstTile) && first == 0 && end > kTile) continue;
      tile(state, first, last);
      if (is(Fault::kLastKeyTwice) && last == kv_used_) tile(state, last - 1, last);
    }
    return state;
  }

  void tile(State& state, int64_t first, int64_t last) const {
    std::vector<float> scores;
    float max = is(Fault::kMaxKeptPerTile) ? -kInf : state.max;
    bool seen = false;
    for (int64_t j = first; j < last; ++j) {
      scores.push_back(score(j));
      seen = seen || visible(j) || is(Fault::kFiniteStandIn) || is(Fault::kSoftcapAfterMask);
      // A NaN score must become the maximum, not be passed over.
      if (scores.back() > max || std::isnan(scores.back())) max = scores.back();
    }
    if ((!seen || max == -kInf) && !is(Fault::kEmptyRowNan)) return;
    const float rescale = state.max == -kInf ? 0 : std::exp(state.max - max);
    if (!is(Fault::kSumNotRescaled)) state.sum *= rescale;
    if (!is(Fault::kOutNotRescaled)) {
      for (float& x : state.out) x *= rescale;
    }
    state.max = max;
    // A tile is summed on its own and added once: fewer roundings than one long chain.
    float tile_sum = 0;
    std::vector<float> tile_out(state.out.size(), 0.0f);
    for (int64_t j = first; j < last; ++j) {
      const float s = scores[static_cast<size_t>(j - first)];
      if (!visible(j) && !is(Fault::kFiniteStandIn) && !is(Fault::kSoftcapAfterMask)) continue;
      const float exact = std::exp(s - max);
      const float stored =
          is(Fault::kProbsTruncated) ? truncated(p_.q.dtype, exact) : in_type(p_.q.dtype, exact);
      float& sum = is(Fault::kRowSumIn16Bits) ? state.sum : tile_sum;
      sum += exact;
      if (is(Fault::kRowSumIn16Bits)) sum = in_type(p_.q.dtype, sum);
      std::vector<float>& out = is(Fault::kAccumulatorIn16Bits) ? state.out : tile_out;
      for (size_t d = 0; d < out.size(); ++d) {
        const float v = static_cast<float>(c_.at("v", {b_, head_, j, static_cast<int64_t>(d)}));
        out[d] += stored * v;
        if (is(Fault::kAccumulatorIn16Bits)) out[d] = in_type(p_.q.dtype, out[d]);
      }
    }
    state.sum += tile_sum;
    for (size_t d = 0; d < tile_out.size(); ++d) state.out[d] += tile_out[d];
  }

  void finish(Case& c, const std::vector<State>& parts) const {
    const bool has_sink = c_.has("sink") && !is(Fault::kSinkDropped);
    const float sink = has_sink ? static_cast<float>(c_.at("sink", {h_})) : -kInf;
    float max = sink;
    for (const State& part : parts) {
      if (part.max > max || std::isnan(part.max)) max = part.max;
    }
    float sum = max == -kInf ? 0 : std::exp(sink - max);
    if (is(Fault::kSinkPerSplit)) sum *= static_cast<float>(parts.size());
    const float sink_weight = sum;
    std::vector<float> out(static_cast<size_t>(p_.v.shape[3]), 0.0f);
    float weight = 0;
    for (const State& part : parts) {
      if (part.max == -kInf && !is(Fault::kEmptyRowNan)) continue;
      const float factor = std::exp(part.max - max);
      sum += part.sum * factor;
      weight += 1;
      for (size_t d = 0; d < out.size(); ++d) {
        out[d] += is(Fault::kSplitsAveraged) ? part.out[d] / part.sum : part.out[d] * factor;
      }
    }
    const bool empty = sum == 0 && !is(Fault::kEmptyRowNan);
    float lse = empty ? -kInf : max + std::log(sum);
    if (is(Fault::kLseBaseTwo)) lse /= std::log(2.0f);
    if (is(Fault::kLseWithoutSink)) lse = max + std::log(sum - sink_weight);
    if (is(Fault::kLseRoundedTo16Bits)) lse = in_type(RUNMAX_BF16, lse);
    for (size_t d = 0; d < out.size(); ++d) {
      float x = empty ? 0 : out[d] / (is(Fault::kSplitsAveraged) ? weight : sum);
      if (is(Fault::kNanHidden) && std::isnan(x)) x = 0;
      if (is(Fault::kOutRoundedTwice)) {
        x = in_type(p_.out.dtype, in_type(p_.out.dtype, out[d]) / in_type(p_.out.dtype, sum));
      }
      c.set("out", {b_, h_, i_, static_cast<int64_t>(d)}, x);
    }
    if (c.has("lse")) c.set("lse", {b_, h_, i_}, lse);
  }

  const Case& c_;
  const runmax_problem& p_;
  Fault fault_;
  int64_t b_, h_, i_, head_, kv_used_, q_used_, offset_;
  float scale_;
};

}  // namespace

void run(Case& c, Fault fault) {
  const runmax_tensor& out = c.problem().out;
  c.seal();
  for (int64_t b = 0; b < out.shape[0]; ++b) {
    for (int64_t h = 0; h < out.shape[1]; ++h) {
      for (int64_t i = 0; i < out.shape[2]; ++i) {
        if (i < c.q_used(b)) {
          Row(c, fault, b, h, i).compute(c);
          continue;
        }
        for (int64_t d = 0; d < out.shape[3]; ++d) c.set("out", {b, h, i, d}, 0);
        if (c.has("lse")) c.set("lse", {b, h, i}, -kInf);
      }
    }
  }
}

const char* name_of(Fault fault) {
  static const char* const kNames[] = {"None",
                                       "CausalOneMore",
                                       "CausalOneLess",
                                       "WindowOneMore",
                                       "WindowOneLess",
                                       "TopLeft",
                                       "SinkTokensIgnored",
                                       "WrongHead",
                                       "DroppedTail",
                                       "DroppedFirstTile",
                                       "LastKeyTwice",
                                       "ReadsPastLength",
                                       "BiasHeadStride",
                                       "OutNotRescaled",
                                       "SumNotRescaled",
                                       "MaxKeptPerTile",
                                       "FiniteStandIn",
                                       "EmptyRowNan",
                                       "NanHidden",
                                       "SplitsAveraged",
                                       "SinkPerSplit",
                                       "SinkDropped",
                                       "LastSplitDropped",
                                       "ScaleOfPaddedDim",
                                       "SoftcapAfterMask",
                                       "AlibiFromQueryIndex",
                                       "BiasIgnored",
                                       "LseBaseTwo",
                                       "LseWithoutSink",
                                       "LseRoundedTo16Bits",
                                       "ScoresIn16Bits",
                                       "ProbsTruncated",
                                       "RowSumIn16Bits",
                                       "AccumulatorIn16Bits",
                                       "OutRoundedTwice"};
  return kNames[static_cast<int>(fault)];
}

std::vector<Fault> all_faults() {
  std::vector<Fault> faults;
  for (int f = 1; f <= static_cast<int>(Fault::kOutRoundedTwice); ++f) {
    faults.push_back(static_cast<Fault>(f));
  }
  return faults;
}

}  // namespace runmax::negative
