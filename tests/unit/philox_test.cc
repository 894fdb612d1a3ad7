#include "core/philox.h"

#include <gtest/gtest.h>

namespace runmax {
namespace {

struct KnownAnswer {
  PhiloxBlock counter;
  PhiloxKey key;
  PhiloxBlock expected;
};

// The known answers that Random123 publishes for philox4x32-10.
constexpr KnownAnswer kKnownAnswers[] = {
    {{{0, 0, 0, 0}}, {{0, 0}}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
    {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
     {{0xffffffff, 0xffffffff}},
     {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
    {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
     {{0xa4093822, 0x299f31d0}},
     {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
};

TEST(Philox, KnownAnswers) {
  for (const KnownAnswer& known : kKnownAnswers) {
    const PhiloxBlock block = philox_4x32_10(known.counter, known.key);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(block.word[i], known.expected.word[i]);
  }
  static_assert(philox_4x32_10({{0, 0, 0, 0}}, {{0, 0}}).word[0] == 0x6627e8d5);
}

}  // namespace
}  // namespace runmax
