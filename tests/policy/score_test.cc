// The score policy, instantiated with a lane type of our own, a scalar and long double: one text.
#include "policy/score.h"

#include <gtest/gtest.h>

#include <cmath>

namespace {

// The smallest thing that a kernel could use as its value type.
struct Toy4 {
  float lane[4];
};
template <class F>
Toy4 map(const Toy4& a, F f) {
  return {{f(a.lane[0]), f(a.lane[1]), f(a.lane[2]), f(a.lane[3])}};
}
template <class F>
Toy4 zip(const Toy4& a, const Toy4& b, F f) {
  return {{f(a.lane[0], b.lane[0]), f(a.lane[1], b.lane[1]), f(a.lane[2], b.lane[2]),
           f(a.lane[3], b.lane[3])}};
}
Toy4 operator+(const Toy4& a, const Toy4& b) {
  return zip(a, b, [](float x, float y) { return x + y; });
}
Toy4 operator-(const Toy4& a, const Toy4& b) {
  return zip(a, b, [](float x, float y) { return x - y; });
}
Toy4 operator*(const Toy4& a, const Toy4& b) {
  return zip(a, b, [](float x, float y) { return x * y; });
}
Toy4 operator*(const Toy4& a, float b) {
  return map(a, [b](float x) { return x * b; });
}
Toy4 operator/(const Toy4& a, float b) {
  return map(a, [b](float x) { return x / b; });
}
Toy4 operator-(float a, const Toy4& b) {
  return map(b, [a](float x) { return a - x; });
}

}  // namespace

template <>
struct runmax::policy::Math<Toy4> {
  static Toy4 tanh(const Toy4& x) {
    return map(x, [](float y) { return std::tanh(y); });
  }
};

namespace runmax::policy {
namespace {

constexpr Score<float> kAll{.scale = 0.25f,
                            .softcap = 2,
                            .alibi_slope = 0.5f,
                            .has_softcap = true,
                            .has_bias = true,
                            .has_alibi = true};

TEST(Score, FollowsTheDocumentedOrder) {
  const double expected = 2 * std::tanh(6.0 * 0.25 / 2) + 0.75 - 0.5 * 3;
  EXPECT_NEAR(kAll.forward(6.0f, 3.0f, 0.75f), expected, 1e-6);
  EXPECT_NEAR(static_cast<double>(kAll.as<long double>().forward(6.0L, 3.0L, 0.75L)), expected,
              1e-15);
}

TEST(Score, LanesAgreeWithTheScalar) {
  // Within ulps only: a compiler may fold one of the two tanh at its own precision.
  const Toy4 dot{{6, -3, 0.125f, 1e4f}};
  const Toy4 distance{{0, 1, 2, 3}};
  const Toy4 bias{{0, -1, 5, 0.5f}};
  for (int features = 0; features < 8; ++features) {
    Score<float> s = kAll;
    s.has_softcap = (features & 1) != 0;
    s.has_bias = (features & 2) != 0;
    s.has_alibi = (features & 4) != 0;
    const Toy4 score = s.forward(dot, distance, bias);
    const Toy4 grad = s.backward(dot, distance);
    for (int i = 0; i < 4; ++i) {
      EXPECT_FLOAT_EQ(score.lane[i], s.forward(dot.lane[i], distance.lane[i], bias.lane[i]));
      EXPECT_FLOAT_EQ(grad.lane[i], s.backward(dot.lane[i], distance.lane[i]));
    }
  }
}

TEST(Score, AbsentTermsReadNothing) {
  Score<float> s = kAll;
  s.has_softcap = s.has_bias = s.has_alibi = false;
  EXPECT_EQ(s.forward(6.0f, NAN, NAN), 1.5f);
}

TEST(Score, BackwardAppliesTheDerivativeOfForward) {
  for (const bool capped : {false, true}) {
    Score<double> s = kAll.as<double>();
    s.has_softcap = capped;
    for (const double dot : {-20.0, -1.0, 0.0, 0.3, 7.0}) {
      const double h = 1e-5;
      const double slope = (s.forward(dot + h, 1.0, 2.0) - s.forward(dot - h, 1.0, 2.0)) / (2 * h);
      EXPECT_NEAR(s.backward(dot, 3.0), 3 * slope, 3e-9) << "dot " << dot;
    }
  }
}

}  // namespace
}  // namespace runmax::policy
