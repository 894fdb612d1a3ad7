// A tile of 16-bit rows in shared memory, how it is filled, and the fragments that come out of it.
//
// A row is kColumns elements and 16 bytes of padding: an odd number of 16-byte units, so that the
// eight rows of an 8x8 matrix lie in different banks for every column, and every address is one
// register plus a constant (a swizzle saves the padding, but costs an XOR per 16 columns).
#pragma once

#include "cuda/ptx/mma.cuh"

namespace runmax::cuda {

template <int kColumns>
struct SharedTile {
  static constexpr int kRowBytes = kColumns * 2 + 16;
  static_assert(kColumns % 16 == 0,
                "an even number of 16-byte units, so that padding makes it odd");

  static constexpr int bytes(int rows) { return rows * kRowBytes; }

  // Where this lane reads A fragments (rows x k), and B fragments of a matrix stored [k][n].
  // Add row * kRowBytes + column * 2.
  static __device__ __forceinline__ uint32_t lane_offset(int lane) {
    return static_cast<uint32_t>((lane % 16) * kRowBytes + lane / 16 * 16);
  }
  // Likewise for B fragments of a matrix stored [n][k]: two n8 tiles, each with both k halves.
  static __device__ __forceinline__ uint32_t lane_offset_transposed(int lane) {
    return static_cast<uint32_t>((lane % 8 + lane / 16 * 8) * kRowBytes + lane / 8 % 2 * 16);
  }
};

// Rows of a tile that are read; all others become zeros: [begin, end) and those below `leading`.
struct RowFilter {
  int begin;
  int end;
  int leading;
  __device__ __forceinline__ bool keep(int row) const {
    return (row < end) & ((row >= begin) | (row < leading));
  }
};

// The tensor that tiles are cut from: one head of one sequence.
template <class Element>
struct TileSource {
  const Element* base;  // row 0, column 0
  int64_t row_stride;   // elements
  int64_t column_stride;
  int columns;  // those past it are zeros
};

// The asynchronous copy of kRows x kColumns by kThreads threads in pieces of 16 bytes: needs
// column_stride 1, and addresses and strides of whole pieces. 4 or 8 lanes take a row's
// neighbouring pieces, so that a thread's addresses differ by constants and multiples of one
// stride.
template <int kRows, int kColumns, int kThreads>
struct AsyncCopy {
  using Tile = SharedTile<kColumns>;
  static constexpr int kLanes = kColumns % 64 == 0 ? 8 : 4;
  static constexpr int kRowsAtOnce = kThreads / kLanes;
  static constexpr int kPasses = kRows / kRowsAtOnce;
  static constexpr int kPieces = kColumns / 8 / kLanes;  // of a row, per thread
  static_assert(kRows % kRowsAtOnce == 0, "whole passes");

  static __device__ __forceinline__ int row(int thread) { return thread / kLanes; }
  static __device__ __forceinline__ int column(int thread) { return thread % kLanes * 8; }
  static __device__ __forceinline__ uint32_t offset(int thread) {
    return static_cast<uint32_t>(row(thread) * Tile::kRowBytes + column(thread) * 2);
  }

  // The whole tile; `to` and `from` are this thread's first piece.
  template <class Element>
  static __device__ __forceinline__ void whole(uint32_t to, const Element* from,
                                               int64_t row_stride) {
    const int64_t step = kRowsAtOnce * row_stride;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        ptx::copy_16_async(
            to + static_cast<uint32_t>(pass * kRowsAtOnce * Tile::kRowBytes + piece * kLanes * 16),
            from + piece * kLanes * 8, true);
      }
      from += step;
    }
  }

  // Rows that the filter keeps, and columns that exist; `to` is the tile.
  template <class Element>
  static __device__ __forceinline__ void filtered(uint32_t to, const TileSource<Element>& source,
                                                  int64_t first_row, RowFilter filter, int thread) {
    const Element* from =
        source.base + (first_row + row(thread)) * source.row_stride + column(thread);
    to += offset(thread);
#pragma unroll 1
    for (int pass = 0; pass < kPasses; ++pass) {
      const bool keep = filter.keep(row(thread) + pass * kRowsAtOnce);
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const bool valid = keep & (column(thread) + piece * kLanes * 8 < source.columns);
        ptx::copy_16_async(to + static_cast<uint32_t>(piece * kLanes * 16),
                           valid ? from + piece * kLanes * 8 : source.base, valid);
      }
      to += kRowsAtOnce * Tile::kRowBytes;
      from += kRowsAtOnce * source.row_stride;
    }
  }
};

// The same for any stride and address, an element at a time.
template <int kRows, int kColumns, int kThreads, class Element>
__device__ __forceinline__ void load_tile_elements(unsigned char* to,
                                                   const TileSource<Element>& from,
                                                   int64_t first_row, RowFilter filter,
                                                   int thread) {
  using Tile = SharedTile<kColumns>;
  const Element* origin = from.base + first_row * from.row_stride;
#pragma unroll 4
  for (int index = thread; index < kRows * kColumns; index += kThreads) {
    const int row = index / kColumns;
    const int column = index % kColumns;
    Element x{};
    if (filter.keep(row) && column < from.columns) {
      x = origin[row * from.row_stride + column * from.column_stride];
    }
    *reinterpret_cast<Element*>(to + row * Tile::kRowBytes + column * 2) = x;
  }
}

}  // namespace runmax::cuda
