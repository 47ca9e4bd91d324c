#pragma once

// The search for the scale of a group: the one with which every value is a level times the scale,
// rounded.

#include <cstddef>
#include <vector>

#include "quantized/format.h"

namespace bf16codecs::quantized {

// Levels, and what the search needs to know of them.
struct Kind {
  Levels levels;
  Label label = Label::none;
  std::vector<float> tops =
      {};                 // levels that a group's largest magnitude may have, likely ones first
  float fixed_scale = 0;  // of all groups; 0: each group has its own
};

class ScaleFinder {
 public:
  ScaleFinder(const Kind& kind, Precision precision);

  // Returns 0 if there is no scale. Of a group of zeros, any is right.
  float find(const float* values, size_t n);

 private:
  float reduced(float scale, float top, const float* values, size_t n, float most) const;
  float find_with(float top, const float* values, size_t n, float most) const;
  bool is_exact(const float* values, size_t n, float scale) const;

  const Kind& kind_;
  Precision precision_;
  std::vector<float> tops_;  // the one that was right last comes first
  float last_ = 1;
};

}  // namespace bf16codecs::quantized
