// What forward and backward prepare alike before their items run: the list of q tiles of packed
// sequences, and block selection as sorted lists.
#pragma once

#include "cpu/forward_params.h"
#include "registry/kernel_entry.h"

namespace runmax::cpu {

// With block selection tile edges lie on block edges where blocks are large enough, so that what is
// executed is what was selected.
void fit_tiles_to_blocks(const Problem& problem, ForwardParams& p);

// q tiles over all sequences, at most.
int64_t most_q_tiles(const Problem& problem, int64_t q_tile);

// Books "tile_start" and "block_*".
void book_work(const Problem& problem, Workspace& ledger);

// Fills them and points `p` at them. Returns the number of q tiles.
int64_t prepare_work(const Launch& launch, ForwardParams& p);

}  // namespace runmax::cpu
