// The main of every GoogleTest executable: a run that executes nothing, or skips something, fails.
#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  if (testing::GTEST_FLAG(list_tests)) return result;
  const testing::UnitTest& unit = *testing::UnitTest::GetInstance();
  if (unit.test_to_run_count() == 0 || unit.skipped_test_count() != 0) {
    std::fprintf(stderr, "%d tests to run, %d skipped: a test that does not run proves nothing\n",
                 unit.test_to_run_count(), unit.skipped_test_count());
    return 1;
  }
  return result;
}
