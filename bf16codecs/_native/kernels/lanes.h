#pragma once

// The lanes of the interleaved rANS modes (docs/format.md).

#include <cstddef>
#include <cstdint>

namespace bf16codecs {

inline constexpr unsigned kLanesPerGroup = 32;
inline constexpr unsigned kMaxGroups = 4;
inline constexpr unsigned kMaxLanes = kLanesPerGroup * kMaxGroups;
inline constexpr uint32_t kLowestState = 1u << 16;

// Symbols that a group of lanes decodes in a step of the pairs mode.
inline constexpr unsigned kPairSymbols = 2 * kLanesPerGroup;

// Where a lane's symbol stands among the 32 of its group.
static constexpr unsigned lane_place(unsigned lane) {
  return lane < 16 ? 2 * lane : 2 * (lane - 16) + 1;
}

// x / (f g), with x < 2^16 f g, as x * (reciprocal of f) * (reciprocal of g) in binary32 makes up
// to seven roundings of 2^-24. A bias of 2^-21 in each reciprocal outweighs them, and together
// they stay below 1 / 2^16, a quotient's unit.
inline constexpr float kReciprocalBias = 1.0f / (1 << 21);

}  // namespace bf16codecs
