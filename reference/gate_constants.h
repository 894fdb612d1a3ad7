// The constants of docs/numerics.md, section "The error gates". They were derived there before any
// kernel was measured; they do not depend on lengths.
#pragma once

namespace runmax::reference {

inline constexpr double kRounding = 1.25;      // c1: one rounding of a result
inline constexpr double kProbRounding = 1.25;  // c2: one rounding of each weight to 16 bits
inline constexpr double kScore = 1;            // c3: E_ij is a bound already
inline constexpr double kSum = 64;             // c4: sums over keys, or over rows
inline constexpr double kLseSum = 32;          // c4 of lse: the denominator and its logarithm
inline constexpr double kLseRounding = 4;  // c1 of lse: conversion between logarithms, a rounding

}  // namespace runmax::reference
