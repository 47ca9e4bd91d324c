#pragma once

// The length of a row, found as a lag at which items agree.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace bf16codecs::grid {

// Lags are multiples of this. Rows of other lengths show at a multiple of theirs.
inline constexpr size_t kLagUnit = 16;

// The smallest whole number whose square is at least x.
int64_t root_up(int64_t x);

// Finds the first lag that stands out, given how much items agree at lags of kLagUnit, 2 kLagUnit
// ...; 0 if no agreement exceeds the median by more than `least`. Where scales drift, items agree
// somewhat at all lags.
size_t first_outstanding(const std::vector<int64_t>& agreements, int64_t least);

}  // namespace bf16codecs::grid
