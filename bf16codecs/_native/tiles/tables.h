#pragma once

// The tables of the tiles mode (docs/format_tiles.md, "Table classes").

#include <cstddef>
#include <cstdint>

#include "kernels/tiles.h"

namespace bf16codecs::tiles {

inline constexpr unsigned kEscapeEntry = kTileEntries - 1;
inline constexpr unsigned kMaxIntervals = kTileEntries - 1;
inline constexpr unsigned kTableTotal = 4096;
inline constexpr unsigned kMaxFrequency = kTableTotal - 1;

// The intervals of one class, in ascending order, without gaps.
struct Intervals {
  unsigned n = 0;
  uint8_t base[kMaxIntervals] = {};
  uint8_t log2[kMaxIntervals] = {};
  uint16_t frequency[kMaxIntervals] = {};
};

// The largest n for which 2^n symbols from `first` on may be an interval that ends at `end` or
// before.
unsigned largest_interval(unsigned first, unsigned end);

// The number that the frequency of an interval of 2^log2 symbols must be a multiple of, so that one
// word is enough to bring a state back to 2^16.
inline unsigned frequency_unit(unsigned log2) {
  return log2 == kMaxIntervalLog2 ? 2 : 1;
}

// Make tables, with the parts that these kernels read.
TileTable make_table(const Intervals& intervals, unsigned escape_frequency,
                     const TileKernels& kernels);
TileCodeTable make_code_table(const Intervals& intervals, unsigned escape_frequency,
                              const TileKernels& kernels);

}  // namespace bf16codecs::tiles
