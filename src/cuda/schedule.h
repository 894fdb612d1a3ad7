// The small kernels before and after a forward kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/forward_params.h"
#include "runmax/runmax.h"

namespace runmax::cuda {

// Packed: tile_start[b] = q tiles of the sequences before b, for b in [0, batch + 1]; sequence
// `batch` is the storage after the last one.
cudaError_t list_tiles(const ForwardParams& p, int64_t* tile_start, cudaStream_t stream);

// Block selection: sorts each list of block_index into `entries`, without negative entries and
// duplicates; packed: start[b] = q blocks of the sequences before b.
cudaError_t list_blocks(const ForwardParams& p, const runmax_tensor& index, const int32_t* from,
                        int32_t* entries, int32_t* counts, int64_t* start, cudaStream_t stream);

// Partial states become out, lse and lse_lo, in the order of the splits.
cudaError_t merge_splits(const ForwardParams& p, int64_t items, cudaStream_t stream);

cudaError_t load_schedule();

}  // namespace runmax::cuda
