#include "core/workspace.h"

#include <gtest/gtest.h>

#include <vector>

namespace runmax {
namespace {

TEST(Workspace, TakesBackWhatWasBooked) {
  Workspace ledger;
  ledger.book("scores", 100);
  ledger.book("nothing", 0);
  ledger.book("row_max", 64);
  ledger.book("last", 1);
  EXPECT_EQ(ledger.size(), 128u + 64u + 64u);
  ASSERT_EQ(ledger.parts().size(), 4u);

  alignas(RUNMAX_WORKSPACE_ALIGNMENT) std::byte memory[256];
  EXPECT_EQ(ledger.take(memory, "scores"), memory);
  EXPECT_EQ(ledger.take<float>(memory, "row_max"), reinterpret_cast<float*>(memory + 128));
  EXPECT_EQ(ledger.take(memory, "last"), memory + 192);
  EXPECT_EQ(ledger.take(memory, "nothing"), nullptr);
  EXPECT_EQ(ledger.take(memory, "unknown"), nullptr);
}

TEST(Workspace, PartsNeitherOverlapNorLeaveTheTotal) {
  Workspace ledger;
  const char* names[] = {"a", "b", "c", "d", "e", "f"};
  const size_t sizes[] = {1, 63, 64, 65, 1000, 7};
  for (int i = 0; i < 6; ++i) ledger.book(names[i], sizes[i]);
  size_t end = 0;
  for (const Workspace::Part& part : ledger.parts()) {
    EXPECT_EQ(part.offset % RUNMAX_WORKSPACE_ALIGNMENT, 0u);
    EXPECT_GE(part.offset, end);
    end = part.offset + part.bytes;
  }
  EXPECT_LE(end, ledger.size());
}

TEST(Workspace, ProductsOfSizesSaturate) {
  EXPECT_EQ(Workspace::bytes({3, 5, 7}), 105u);
  EXPECT_EQ(Workspace::bytes({INT64_MAX, INT64_MAX, 0}), 0u);
  EXPECT_EQ(Workspace::bytes({INT64_MAX, 4, 1, INT64_MAX}), SIZE_MAX / 16);
}

TEST(Workspace, EmptyLedgerNeedsNothing) {
  const Workspace ledger;
  EXPECT_EQ(ledger.size(), 0u);
  EXPECT_EQ(ledger.take(nullptr, "a"), nullptr);
}

}  // namespace
}  // namespace runmax
