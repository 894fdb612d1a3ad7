// A problem string as the commands use it.
#pragma once

#include <cstdint>
#include <string>

#include "device.h"
#include "options.h"
#include "runmax/runmax.h"
#include "testing/problem_string.h"

namespace runmax::cli {

struct Spec {
  testing::ProblemSpec words;
  runmax_problem problem;  // validated; kernel points into `words`

  explicit Spec(const testing::ProblemSpec& spec);
  Spec(const Spec&) = delete;
  Spec& operator=(const Spec&) = delete;

  // The device of the options, with what the string says about it.
  Device make_device(Options options) const;
  // Of all its tensors.
  double bytes() const;
};

// Throws Error for a string that does not parse or a problem that is ill-formed.
Spec parse_spec(const std::string& text, bool backward = false);

}  // namespace runmax::cli
