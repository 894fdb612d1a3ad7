// Causal attention through the C++ interface: one batch entry, 4 query heads on 2 kv heads.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "runmax/runmax.hpp"

static std::vector<float> random_floats(size_t n) {
  std::vector<float> x(n);
  for (float& value : x) value = static_cast<float>(std::rand() / double{RAND_MAX}) - 0.5F;
  return x;
}

int main() {
  constexpr int64_t kQHeads = 4, kKvHeads = 2, kLen = 128, kHeadDim = 64;
  const std::vector<float> q = random_floats(kQHeads * kLen * kHeadDim);
  const std::vector<float> k = random_floats(kKvHeads * kLen * kHeadDim);
  const std::vector<float> v = random_floats(kKvHeads * kLen * kHeadDim);
  std::vector<float> out(q.size()), lse(kQHeads * kLen);

  const runmax::Status status =
      runmax::attention(runmax::TensorView(q, {1, kQHeads, kLen, kHeadDim}),
                        runmax::TensorView(k, {1, kKvHeads, kLen, kHeadDim}),
                        runmax::TensorView(v, {1, kKvHeads, kLen, kHeadDim}),
                        runmax::TensorView(out, {1, kQHeads, kLen, kHeadDim}),
                        {.causal = true, .lse = runmax::TensorView(lse, {1, kQHeads, kLen})});
  if (!status) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }

  // Under the causal rule the first row sees the first key alone: its result is that value.
  std::printf("out[0, 0, 0, :3] = %f %f %f, lse[0, 0, 0] = %f\n", out[0], out[1], out[2], lse[0]);
  return out[0] == v[0] && out[1] == v[1] && out[2] == v[2] ? 0 : 1;
}
