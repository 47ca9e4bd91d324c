#pragma once

// Means of groups of numbers among which some may be far larger than the others.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "grid/fixed_point.h"

namespace bf16codecs::delta {

struct Mean {
  uint64_t sum = 0, count = 0;

  // log2 of the mean, in 4096ths; the sum must not be 0.
  int log() const {
    constexpr unsigned kUp = 20;
    return grid::log2_floor(std::max<uint64_t>(1, (sum << kUp) / count)) -
           static_cast<int>(kUp) * grid::kOctave;
  }
};

// The means of `group_count` groups; groups[i] is the group of numbers[i]. A number counts as no
// more than two to four times what nine in ten of its group stay below. Otherwise the one
// difference in a hundred that has nothing to do with the others would make up most of a mean:
// frames were four times as large (docs/design_codecs.md, "Differences").
template <typename Group>
std::vector<Mean> robust_means(std::span<const Group> groups, std::span<const uint16_t> numbers,
                               size_t group_count) {
  constexpr unsigned kWidths = 17;
  std::vector<uint32_t> widths(kWidths * group_count);
  std::vector<Mean> means(group_count);
  for (size_t i = 0; i < numbers.size(); ++i) {
    ++widths[kWidths * groups[i] + static_cast<unsigned>(std::bit_width(numbers[i]))];
    ++means[groups[i]].count;
  }
  std::vector<uint32_t> most(group_count);
  for (size_t g = 0; g < group_count; ++g) {
    uint64_t below = 0;
    unsigned width = 0;
    for (; width < kWidths; ++width) {
      below += widths[kWidths * g + width];
      if (10 * below >= 9 * means[g].count) break;
    }
    most[g] = uint32_t{2} << width;
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    means[groups[i]].sum += std::min<uint32_t>(numbers[i], most[groups[i]]);
  }
  return means;
}

}  // namespace bf16codecs::delta
