#pragma once

// The lags at which items agree, of which the length of a row is one.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace bf16codecs::grid {

// Rows of other lengths show at a multiple of theirs.
inline constexpr size_t kLagUnit = 16;

// The smallest whole number whose square is at least x.
int64_t root_up(int64_t x);

// The first lag that stands out, of lags of kLagUnit, 2 kLagUnit ... at which items agree so much;
// 0 if none exceeds the usual one by more than `least`. Where scales drift, all lags agree
// somewhat.
size_t first_outstanding(const std::vector<int64_t>& agreements, int64_t least);

}  // namespace bf16codecs::grid
