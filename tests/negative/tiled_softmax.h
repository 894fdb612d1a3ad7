// A small tiled attention with an online softmax, honest or with one fault built in: what the gates
// must tell apart. Slow and plain on purpose; it shares nothing with the kernels of src/.
#pragma once

#include <string>
#include <vector>

#include "testing/case.h"

namespace runmax::negative {

enum class Fault {
  kNone,
  // Which keys, which heads.
  kCausalOneMore,
  kCausalOneLess,
  kWindowOneMore,
  kWindowOneLess,
  kTopLeft,
  kSinkTokensIgnored,
  kWrongHead,
  kDroppedTail,
  kDroppedFirstTile,
  kLastKeyTwice,
  kReadsPastLength,
  kBiasHeadStride,
  // The online softmax.
  kOutNotRescaled,
  kSumNotRescaled,
  kMaxKeptPerTile,
  kFiniteStandIn,
  kEmptyRowNan,
  kNanHidden,
  // Splits and sink.
  kSplitsAveraged,
  kSinkPerSplit,
  kSinkDropped,
  kLastSplitDropped,
  // Scores.
  kScaleOfPaddedDim,
  kSoftcapAfterMask,
  kAlibiFromQueryIndex,
  kBiasIgnored,
  // lse.
  kLseBaseTwo,
  kLseWithoutSink,
  kLseRoundedTo16Bits,
  // Precision: a fault of rounding, each caught by one term of the gate.
  kScoresIn16Bits,
  kProbsTruncated,
  kRowSumIn16Bits,
  kAccumulatorIn16Bits,
  kOutRoundedTwice,
};

const char* name_of(Fault fault);
std::vector<Fault> all_faults();

inline constexpr int64_t kTile = 64;  // keys of a tile

// Computes out and lse of a dense forward case into its own buffers. Knows causal, window,
// sink_tokens, seqused, softcap, ALiBi, bias, sink, head sharing and num_splits.
void run(testing::Case& c, Fault fault);

}  // namespace runmax::negative
