// Problem strings that sweeps run: by hand from a file, and generated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runmax/runmax.h"

namespace runmax::testing {

inline const std::vector<std::string> kTypes = {"f32", "f64", "bf16", "f16"};
inline std::string str(int64_t value) { return std::to_string(value); }

// The lines of problems.txt, each in every type unless it names one.
std::vector<std::string> problems_by_hand();

// One option of each kind (options.txt) with every other, on lengths of a whole tile and a part of
// one both ways. `words` come first in each problem.
std::vector<std::string> pairs_of_options(const runmax_plan_info& tiles,
                                          const std::string& words = "");

// Everything drawn at random, within what the problem string can say.
std::string random_problem(uint64_t seed);

}  // namespace runmax::testing
