#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "grid/keys.h"

namespace bf16codecs::grid {

// Rows of other lengths show at a multiple of theirs.
inline constexpr size_t kLagUnit = 16;

// The smallest whole number whose square is at least x.
int64_t root_up(int64_t x);

// The first lag that stands out, of lags of kLagUnit, 2 kLagUnit ... at which items agree so much;
// 0 if none exceeds the usual one by more than `least`. Where scales drift, all lags agree
// somewhat.
size_t first_outstanding(const std::vector<int64_t>& agreements, int64_t least);

// Length of the rows in which scales repeat, 0 if there are none: the shortest lag at which
// logarithms of the magnitudes correlate.
size_t find_row(const KeyFormat& format, const std::vector<uint16_t>& keys);

}  // namespace bf16codecs::grid
