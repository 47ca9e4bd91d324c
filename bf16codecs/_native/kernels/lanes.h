#pragma once

// The lanes of the interleaved rANS modes (docs/format.md, "Interleaved rANS").
//
// A lane is a state x with 2^16 <= x < 2^32 between steps. A decoding step takes the lane's symbols
// off x, which leaves at least 1, and shifts one word of 16 bits in if x < 2^16 then: one word is
// always enough. All lanes read the same stream of words, in the order of their numbers. The
// symbols of a step do not depend on words that the step itself reads, so the kernels decode all
// lanes of a group first and hand out the words afterwards.
//
// An encoder does the reverse, from the last step and lane to the first, and writes the words
// downwards in memory: if the symbols would take x to 2^32 or more, it first puts the low 16 bits
// of x out.
//
// Lanes 0-15 have the even symbols of each 32, lanes 16-31 the odd ones:
//
//   symbol   0   1   2   3   4   5  ...  30  31
//   lane     0  16   1  17   2  18  ...  15  31
//
// So where a register holds a word of lane i at word 2 i and one of lane 16 + i at word 2 i + 1,
// the words are in the order of the symbols: two registers of 32-bit states become one of symbols
// without a permutation.

#include <cstddef>
#include <cstdint>

namespace bf16codecs {

inline constexpr unsigned kLanesPerGroup = 32;
inline constexpr unsigned kMaxGroups = 4;
inline constexpr unsigned kMaxLanes = kLanesPerGroup * kMaxGroups;
inline constexpr uint32_t kLowestState = 1u << 16;

// Symbols that a group of lanes decodes in a step of the pairs mode.
inline constexpr unsigned kPairSymbols = 2 * kLanesPerGroup;

// The place of a lane's symbol among the 32 of its group.
static constexpr unsigned lane_place(unsigned lane) {
  return lane < 16 ? 2 * lane : 2 * (lane - 16) + 1;
}

// The encoders divide by multiplying with reciprocals in binary32, which are too small by this
// share. The product is then never above the quotient, and short of it by less than 1, so that its
// integer part is the quotient or one less; comparing the remainder with the divisor tells which.
//
// In the pairs mode, x / (f g) with x < 2^16 f g makes up to seven roundings of 2^-24: two in each
// reciprocal (the division, and the bias), one in their product, one in x, and the last product.
// The two biases, 2^-20 together, outweigh them. All of it is below 23 x 2^-24, so that a quotient
// below 2^16 lacks less than 1. (The tiles and difference modes have one reciprocal; their figures
// stand where they divide.)
inline constexpr float kReciprocalBias = 1.0f / (1 << 21);

// The nearest quotient. Encoders of pairs that hold states in halves of 16 bits divide x < 2^16 f
// in binary32 and round to the nearest integer q. Rounding x and the quotient changes it by at most
// 3 2^-9, so that |x - q f| <= (1/2 + 3 2^-9) f; and for the largest f, 255^2, by at most
// 128 / f + 2^-9, which makes that 32767. So the remainder is a signed word, computed modulo 2^16;
// where it is negative, the quotient is one too large. q may be 2^16, and is 0 as a word then.

}  // namespace bf16codecs
