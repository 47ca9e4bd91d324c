#pragma once

// The entries of the difference mode (docs/format_differences.md, "Numbers").

#include <cstdint>

#include "kernels/lanes.h"

namespace bf16codecs {

inline constexpr unsigned kDeltaClasses = 16;
inline constexpr unsigned kDeltaEntries = 16;  // the last one is the escape
inline constexpr unsigned kDeltaEscape = kDeltaEntries - 1;
inline constexpr unsigned kDeltaPlaces = 64;
inline constexpr unsigned kDeltaSlots = 4096;           // of a class
inline constexpr unsigned kDeltaStep = kLanesPerGroup;  // items of a step
inline constexpr unsigned kMaxDeltaRaw = 8;             // r
// Numbers whose v is above this are escapes.
inline constexpr unsigned kMaxDeltaValue = 127;

// Of entry j: n[j], and the v that it begins with.
inline constexpr uint8_t kDeltaBits[kDeltaEntries] = {0, 0, 0, 0, 0, 0, 0, 0,
                                                      1, 1, 1, 1, 4, 5, 6, 0};
inline constexpr uint8_t kDeltaBase[kDeltaEntries] = {0, 1,  2,  3,  4,  5,  6,  7,
                                                      8, 10, 12, 14, 16, 32, 64, 0};

// The entry of a number that has v above its r lowest bits.
static constexpr unsigned delta_entry(unsigned v) {
  if (v < 8) return v;
  if (v < 16) return 4 + v / 2;
  return v < 32 ? 12 : v < 64 ? 13 : v <= kMaxDeltaValue ? 14 : kDeltaEscape;
}

}  // namespace bf16codecs
