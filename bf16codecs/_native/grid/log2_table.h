#pragma once

// Logarithms of small numbers from a table.

#include <cstdint>

#include "grid/fixed_point.h"
#include "rans/frequencies.h"

namespace bf16codecs::grid {

// Equals log2_floor(x), and takes it from a table if x is at most 4096.
inline int log2_floor_quickly(uint64_t x) {
  static_assert(kOctave == 1 << 12);
  return x <= 1u << kWideBits ? static_cast<int>(log2_fixed(static_cast<uint32_t>(x)) >> 4)
                              : log2_floor(x);
}

}  // namespace bf16codecs::grid
