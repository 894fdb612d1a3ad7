// The check of one execution's pointers against the problem that was planned.
#pragma once

#include "core/problem.h"
#include "core/status.h"
#include "runmax/runmax.h"

namespace runmax {

// Pointers (null, alignment, outputs that share elements) and, where `read_index_data` says that
// the host can read them, every value of the index tensors. Nothing is written; nothing is
// allocated unless the answer is an error, which names the first bad entry ("seqused_kv[3]").
Status check_args(const Problem& problem, const runmax_args& args, bool read_index_data);

// Does the workspace share bytes with an operand? The pointers have been checked before.
Status check_workspace_apart(const Problem& problem, const runmax_args& args, const void* workspace,
                             size_t bytes);

}  // namespace runmax
