#pragma once

// The encoders' choice of classes for estimated scales. Integers alone: the encoders' bytes must be
// the same on every platform.

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

// Their mean, each as often as it has items.
int mean_log_scale(const Scales& scales);

// Chooses classes, worth `unit` 4096ths of an octave each, a power of two, so that scales (less
// `center`) and classes together cost least; returns that cost in 4096ths of a bit.
uint64_t choose_classes(const Scales& scales, int center, int unit, std::vector<int16_t>& classes);

// What it costs to leave them all at `center`.
uint64_t cost_of_one(const Scales& scales, int center);

// Rows of fewer items carry too little: look for a longer period.
inline constexpr size_t kMinRow = 16;

// How many items share a row scale, for rows of so many items, or 0 if that is not known. Very
// short rows are taken together, and of very long ones a part is enough.
uint32_t choose_run(size_t row);

}  // namespace bf16codecs::grid
