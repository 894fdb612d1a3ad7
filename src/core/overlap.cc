// Do two strided tensors name a common byte? With byte strides s_i and indices x_i the question is
// whether sum(s_i * x_i), 0 <= x_i <= last_i, can fall into a small interval: a bounded linear
// Diophantine problem. Real layouts are nested (a stride exceeds all that the smaller ones reach),
// for which the search below visits a handful of nodes; it gives up after kMaxNodes and then
// answers "yes", the safe side.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>

#include "core/tensor.h"

namespace runmax {
namespace {

// Extents below 2^61 bytes (validate() sees to it) keep every sum of two tensors within int64.

struct Term {
  int64_t stride;  // > 0
  int64_t last;    // index runs over [0, last], last > 0
};

// At most two tensors' dimensions, by rising stride.
struct Terms {
  std::array<Term, 2 * RUNMAX_MAX_RANK> data;
  int count = 0;

  void insert(Term term) {
    int i = count++;
    for (; i > 0 && data[i - 1].stride > term.stride; --i) data[i] = data[i - 1];
    data[i] = term;
  }
};

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }  // b > 0
int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }

class Search {
 public:
  // Negative strides are mirrored: s*x = s*last + |s|*(last - x); the constant goes to offset_.
  void add(int64_t stride, int64_t last) {
    if (stride == 0 || last == 0) return;
    if (stride < 0) {
      offset_ += stride * last;
      stride = -stride;
    }
    terms_.insert({stride, last});
  }

  // Is there a choice of indices with sum(stride * index) in [low, high]?
  bool reaches(int64_t low, int64_t high) {
    join();
    for (int i = 0; i < terms_.count; ++i) {
      reach_[i + 1] = reach_[i] + terms_.data[i].stride * terms_.data[i].last;
      divisor_[i + 1] = std::gcd(divisor_[i], terms_.data[i].stride);
    }
    return descend(terms_.count, low - offset_, high - offset_);
  }

 private:
  static constexpr int kMaxNodes = 1 << 16;

  // Terms that together form one longer progression become one.
  void join() {
    int kept = 0;
    for (int i = 0; i < terms_.count; ++i) {
      const Term outer = terms_.data[i];
      if (kept > 0) {
        Term& inner = terms_.data[kept - 1];
        const int64_t ratio = outer.stride / inner.stride;
        if (ratio * inner.stride == outer.stride && ratio - 1 <= inner.last) {
          inner.last += ratio * outer.last;
          continue;
        }
      }
      terms_.data[kept++] = outer;
    }
    terms_.count = kept;
  }

  // The same question for the `count` smallest strides alone.
  bool descend(int count, int64_t low, int64_t high) {
    if (++nodes_ > kMaxNodes) return true;
    low = std::max<int64_t>(low, 0);
    high = std::min(high, reach_[count]);
    if (low > high) return false;
    if (count == 0) return true;
    if (ceil_div(low, divisor_[count]) > floor_div(high, divisor_[count])) return false;
    const auto [stride, last] = terms_.data[count - 1];
    const int64_t first = std::max<int64_t>(0, ceil_div(low - reach_[count - 1], stride));
    const int64_t end = std::min(last, floor_div(high, stride));
    for (int64_t x = first; x <= end; ++x) {
      if (descend(count - 1, low - stride * x, high - stride * x)) return true;
    }
    return false;
  }

  Terms terms_;
  int64_t reach_[2 * RUNMAX_MAX_RANK + 1] = {};    // of the first i terms: the largest sum ...
  int64_t divisor_[2 * RUNMAX_MAX_RANK + 1] = {};  // ... and what divides every sum
  int64_t offset_ = 0;
  int nodes_ = 0;
};

// Addresses may be anything until the extents are known to meet.
__extension__ typedef __int128 Wide;
Wide address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

}  // namespace

bool share_elements(const runmax_tensor& a, const void* a_pointer, const runmax_tensor& b,
                    const void* b_pointer) {
  const ByteExtent a_extent = byte_extent(a);
  const ByteExtent b_extent = byte_extent(b);
  if (a_extent.begin == a_extent.end || b_extent.begin == b_extent.end) return false;
  const Wide distance = address(b_pointer) - address(a_pointer);
  if (a_extent.end <= distance + b_extent.begin || distance + b_extent.end <= a_extent.begin) {
    return false;
  }
  // a's element at p and b's at q meet iff -a_size < q - p < b_size; in offsets from the pointers,
  // a's minus b's lies strictly between distance - a_size and distance + b_size.
  const int64_t a_size = dtype_size(a.dtype);
  const int64_t b_size = dtype_size(b.dtype);
  Search search;
  for (int32_t i = 0; i < a.rank; ++i) {
    if (a.shape[i] > 1) search.add(a.stride[i] * a_size, a.shape[i] - 1);
  }
  for (int32_t i = 0; i < b.rank; ++i) {
    if (b.shape[i] > 1) search.add(-b.stride[i] * b_size, b.shape[i] - 1);
  }
  const int64_t shift = static_cast<int64_t>(distance);
  return search.reaches(shift - a_size + 1, shift + b_size - 1);
}

bool overlaps_itself(const runmax_tensor& tensor) {
  if (element_count(tensor) == 0) return false;
  Terms terms;
  for (int32_t i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] < 2) continue;
    if (tensor.stride[i] == 0) return true;
    terms.insert({std::abs(tensor.stride[i]), tensor.shape[i] - 1});
  }
  // Two indices name one element iff some difference d != 0, |d_i| <= last_i, has
  // sum(stride_i * d_i) = 0. Let k be the last dimension with d_k != 0, and d_k > 0 without loss of
  // generality: stride_k * d_k must be what the smaller strides reach.
  int64_t reach = 0;
  for (int k = 0; k < terms.count; ++k) {
    const auto [stride, last] = terms.data[k];
    if (stride <= reach) {
      Search search;
      search.add(stride, last - 1);
      for (int i = 0; i < k; ++i) search.add(terms.data[i].stride, 2 * terms.data[i].last);
      if (search.reaches(reach - stride, reach - stride)) return true;
    }
    reach += stride * last;
  }
  return false;
}

}  // namespace runmax
