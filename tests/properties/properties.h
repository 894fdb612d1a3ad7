// What the properties share: problems drawn by rapidcheck, and ways to hold one run against
// another. Everything here is called inside a property, and fails that property.
#pragma once

#include <rapidcheck.h>

#include <cstring>
#include <ostream>
#include <string>

#include "testing/case.h"
#include "testing/run.h"

namespace runmax::testing {

// A counterexample prints as the string that `runmax check --problem` replays.
void showValue(const ProblemSpec& spec, std::ostream& os);

// A dense problem of a few tiles at most, in any type, on any instruction set and thread count.
enum class Options {
  kAnyOrder,  // those that do not ask where a key stands
  kPositional,
  kAll  // with drawn lengths, diagonals, prefixes, block lists and dropout
};
rc::Gen<ProblemSpec> problems(Options options);

void run(Case& c);
void run(const runmax_problem& problem, const runmax_args& args, runmax_device* device);

// The outputs of `of`, looked at as the outputs of `as` (in the leading corner, where `of` is
// larger).
struct View {
  View(const Case& as, const Case& of);
  runmax_problem problem;
  runmax_args args;
};

void require_within_gate(const View& view, const reference::Forward& oracle);
void require_same_bits(const View& a, const View& b);

// An element of any rank.
double element(const Case& c, const std::string& name, const int64_t* index);
// Copies every input of `from` into the leading corner of the same operand of `to`.
void embed(const Case& from, Case& to);

}  // namespace runmax::testing
