#include "tiles/gaussian.h"

#include <algorithm>

#include "grid/fixed_point.h"

namespace bf16codecs::tiles {
namespace {

// The intervals and weights of a table class for items that are normally distributed with standard
// deviations of 2^s, where s is spread over the class's quarter of an octave, or over all of it if
// there is one class. They are constants of the format.
struct Gaussian {
  uint8_t log2[kMaxIntervals];
  uint16_t weight[kMaxIntervals];
};

constexpr Gaussian kGaussian[1 + kTileClasses] = {
    {{4, 4, 4, 3, 3, 3, 3, 3, 3, 3, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 3},
     {1,   2,   7,   9,  18, 37, 74, 147, 292, 561, 526, 473, 411, 347, 284, 227,
      177, 136, 102, 76, 55, 40, 28, 20,  24,  11,  5,   2,   1,   1,   1}},
    {{5, 4, 3, 3, 3, 3, 3, 3, 3, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 3},
     {2,   9,   12, 23, 47,  94, 187, 369, 703, 635, 283, 258, 232, 206, 181, 157,
      134, 113, 94, 77, 113, 71, 42,  24,  13,  7,   5,   1,   1,   1,   1}},
    {{5, 4, 3, 3, 3, 3, 3, 3, 3, 2, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3},
     {2,   7,   10,  20,  39, 79, 157, 312, 602, 560, 501, 431, 188, 170, 152, 135,
      118, 103, 164, 118, 82, 55, 35,  22,  13,  8,   7,   2,   1,   1,   1}},
    {{4, 4, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 3},
     {1,   2,   2,   4,   8,  17, 33, 66, 132, 263, 516, 488, 450, 405, 355, 303,
      252, 204, 161, 124, 93, 68, 49, 34, 23,  25,  10,  4,   1,   1,   1}},
    {{5, 4, 3, 3, 3, 3, 3, 3, 3, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 3},
     {2,   5,   7,   14,  28, 56, 111, 222, 437, 420, 397, 369, 336, 300, 263, 227,
      192, 159, 130, 104, 82, 63, 48,  62,  32,  16,  7,   3,   1,   1,   1}},
};

// weight T[d mod 8] 2^(8 + floor(d / 8)): adding kMaxChange = 64 to d makes the exponent 8 larger.
uint64_t changed(unsigned weight, int change) {
  const auto eighths = static_cast<unsigned>(change + kMaxChange);
  return (uint64_t{weight} * grid::kEighths[eighths % 8]) << (eighths / 8);
}

}  // namespace

std::optional<Intervals> gaussian_intervals(unsigned classes, unsigned c, const Changes& changes,
                                            unsigned escape_frequency) {
  const Gaussian& gaussian = kGaussian[classes == 1 ? 0 : 1 + c];
  Intervals intervals;
  intervals.n = kMaxIntervals;
  uint64_t weight[kMaxIntervals], total = 0;
  unsigned base = kGaussianFirst, largest = kMaxIntervals;
  for (unsigned j = 0; j < kMaxIntervals; ++j) {
    intervals.base[j] = static_cast<uint8_t>(base);
    intervals.log2[j] = gaussian.log2[j];
    base += 1u << gaussian.log2[j];
    total += weight[j] = changed(gaussian.weight[j], changes[j]);
  }
  const uint64_t all = kTableTotal - escape_frequency;
  uint64_t sum = 0;
  for (unsigned j = 0; j < kMaxIntervals; ++j) {
    const uint64_t unit = frequency_unit(intervals.log2[j]);
    const uint64_t f = (all * weight[j] + total / 2) / total / unit * unit;
    intervals.frequency[j] = static_cast<uint16_t>(std::max(unit, f));
    sum += intervals.frequency[j];
    const bool is_candidate = unit == 1;
    if (is_candidate &&
        (largest == kMaxIntervals || intervals.frequency[j] > intervals.frequency[largest])) {
      largest = j;
    }
  }
  uint16_t& rest = intervals.frequency[largest];
  if (sum - rest >= all) return std::nullopt;
  rest = static_cast<uint16_t>(all - (sum - rest));
  return intervals;
}

}  // namespace bf16codecs::tiles
