#pragma once

// The search for the scale and the offset of a group: those with which every value is made of an
// integer, by the kind's formula.

#include <cstddef>

#include "quantized/ranges.h"
#include "quantized/scales.h"

namespace bf16codecs::quantized {

class OffsetFinder {
 public:
  // Many tries take up to 25 us: when no `failures` are left, only few are made.
  OffsetFinder(const Kind& kind, Precision precision, size_t& failures);

  // Returns a scale of 0 if there are none.
  ScaleAndOffset find(const float* values, size_t n);

  // Whether the last group took more than few tries.
  bool took_long() const { return tries_ + kFewTries < kManyTries; }

  // Of sums: the scales that a group may have that was found, and with one of these, its offsets.
  Range scales_near(const float* values, size_t n, const ScaleAndOffset& numbers);
  Range offsets_with(float scale) const;
  // The numbers if the values of that group are made of them, or else a scale of 0.
  ScaleAndOffset if_exact(const ScaleAndOffset& numbers);

 private:
  // Values of a group that differ: more are no integers of five bits.
  static constexpr size_t kMostValues = 32;
  // Numbers that are multiplied out for a group, in 50 ns each.
  static constexpr unsigned kManyTries = 512, kFewTries = 24;

  bool has_occurred(float value) const;
  bool collect(const float* values, size_t n);
  ScaleAndOffset of_constant();
  ScaleAndOffset find_with(double levels);
  template <typename Function>
  ScaleAndOffset try_range(const Range& range, Function function);
  ScaleAndOffset with_scale(float scale);
  ScaleAndOffset with_zeros(double scale);
  ScaleAndOffset with_zero(float zero);
  Range scales() const;

  const Kind& kind_;
  Precision precision_, half_;
  float last_scale_ = 1;  // of the group that was found last
  size_t& failures_;      // that are left
  unsigned tries_ = 0;    // that are left for a group

  // The group's values that differ, in their order; by how much each may differ from what was
  // rounded to it, by one rounding and by both; and their levels.
  size_t n_ = 0;
  float values_[kMostValues];
  double errors_[kMostValues], both_errors_[kMostValues], levels_[kMostValues];
};

}  // namespace bf16codecs::quantized
