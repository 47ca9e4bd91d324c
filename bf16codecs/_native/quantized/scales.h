#pragma once

// The search for the scale of a group: the one with which every value is a level times the scale,
// rounded.

#include <cstddef>
#include <span>
#include <vector>

#include "quantized/format.h"

namespace bf16codecs::quantized {

// Levels, and what the search needs to know of them.
struct Kind {
  Levels levels;
  Label label = Label::none;
  // Levels that a group's largest magnitude may have, likely ones first.
  std::vector<float> tops = {};
  float fixed_scale = 0;  // of all groups; 0: each group has its own
  bool has_ones = false;  // whether 1 is the level of most groups' smallest magnitude but 0
  // Of integers with offsets: the smallest one. The only top is how many levels are above it.
  int first = 0;

  bool has_offsets() const { return levels.formula != Formula::product; }
};

// What a group has beside its codes. Its scale is 0 if it is not on a grid.
struct ScaleAndOffset {
  float scale = 0, offset = 0;
};

// Values that refuse most wrong scales.
inline constexpr size_t kFewValues = 32;
// Of groups from this size on, all levels are tried.
inline constexpr size_t kManyValues = 512;

// By how much a number may differ from the product that was rounded to it, as a share of it.
float relative_error(Precision precision);

// The number of an interval, both ends of which are positive, whose significand has the most zeros
// at its end.
float simplest(const Interval& interval);

class ScaleFinder {
 public:
  // Trying all levels in vain takes up to 1 us: when no `failures` are left, only likely ones are
  // tried.
  ScaleFinder(const Kind& kind, Precision precision, size_t& failures);

  // Returns 0 if there is no scale. Of a group of zeros, any is right. The largest magnitude may
  // have any level; but in a small whole group of numbers as coarse as bfloat16's, only likely ones
  // are tried.
  float find(const float* values, size_t n, bool is_whole);

  // The level that the largest magnitude of the last group had.
  float last_top() const { return last_top_; }
  // Says that the last group has this scale.
  void set_last_scale(float scale) { last_scale_ = scale; }

 private:
  std::vector<float> likely_tops(const float* values, size_t n, float most) const;
  float find_with_any(std::span<const float> tops, const float* values, size_t n, float most);
  float find_by_least(const float* values, size_t n, float most);
  float find_by_all(const float* values, size_t n, float most);
  float reduced(float scale, float top, const float* values, size_t n, float most) const;
  float find_with(float top, const float* values, size_t n, float most) const;
  bool is_exact(const float* values, size_t n, float scale) const;

  const Kind& kind_;
  Precision precision_;
  float last_top_, last_scale_ = 1;  // of the group that was found last
  size_t& failures_;                 // that are left
};

}  // namespace bf16codecs::quantized
