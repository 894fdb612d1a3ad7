// The values of host-resident index tensors: lengths, starts of sequences, selected blocks.
#pragma once

#include "core/problem.h"
#include "core/status.h"
#include "runmax/runmax.h"

namespace runmax {

// Names the first entry that would reach outside of what the problem declares. Pointers have been
// checked before.
Status check_index_data(const Problem& problem, const runmax_args& args);

}  // namespace runmax
