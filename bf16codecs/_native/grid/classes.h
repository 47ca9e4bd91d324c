#pragma once

// The encoders' choice of classes for estimated scales. It uses integers alone, so that the
// encoders' bytes are the same on every platform.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "grid/keys.h"

namespace bf16codecs::grid {

inline constexpr int kScaleUnit = 4096 / static_cast<int>(kScaleSteps);  // in 4096ths of an octave

// log2 of a Gaussian's standard deviation over its mean |x|, in 4096ths.
inline constexpr int kDeviation = 1334;

// Middle of a scale's interval, in 4096ths of an octave.
inline int center_of(int scale) {
  return scale * kScaleUnit + kScaleUnit / 2;
}

struct Scales {
  std::vector<int> log_scale;   // 4096ths of an octave
  std::vector<uint64_t> count;  // items behind the estimate; 0 if all are zero
};

// The mean of the scales, weighted by their items.
int mean_log_scale(const Scales& scales);

// Chooses classes, worth `unit` 4096ths of an octave each, a power of two. They cost bits, and so
// do items whose scale, less `center`, is not quite its class's: the sum is to be least. Returns it
// in 4096ths of a bit.
uint64_t choose_classes(const Scales& scales, int center, int unit, std::vector<int16_t>& classes);

// The cost of all scales being `center`.
uint64_t cost_of_one(const Scales& scales, int center);

// Rows of fewer items carry too little: look for a longer period.
inline constexpr size_t kMinRow = 16;

// Chooses how many items share a row scale. `row` is the length of a row in items, 0 if that is not
// known. Very short rows are taken together; a part of a very long row has a scale of its own.
uint32_t choose_row_length(size_t row);

}  // namespace bf16codecs::grid
