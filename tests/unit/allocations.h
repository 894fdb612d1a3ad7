// Counts this thread's allocations through operator new.
#pragma once

#include <cstdint>

namespace runmax::testing {

int64_t allocations();

}  // namespace runmax::testing
