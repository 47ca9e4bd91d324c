#pragma once

// The search for the scale and the offset of a group: those with which every value is made of an
// integer, by the kind's formula.

#include <cstddef>
#include <vector>

#include "quantized/scales.h"

namespace bf16codecs::quantized {

class OffsetFinder {
 public:
  OffsetFinder(const Kind& kind, Precision precision);

  // Returns a scale of 0 if there are none.
  GroupNumbers find(const float* values, size_t n);

 private:
  struct Range {
    double low, high;  // none if low > high

    void limit(double least, double most);
  };
  // A value of a group, the bounds of what may be rounded to it, and its level.
  struct Value {
    double value;
    Range bounds;
    double level;
  };

  bool collect(const float* values, size_t n);
  GroupNumbers of_constant();
  GroupNumbers find_with(double levels);
  template <typename Function>
  GroupNumbers try_range(const Range& range, Function function) const;
  GroupNumbers with_scale(float scale) const;
  GroupNumbers with_zeros(double scale) const;
  GroupNumbers with_zero(float zero) const;
  Range scales() const;
  GroupNumbers if_exact(const GroupNumbers& numbers) const;

  const Kind& kind_;
  Precision precision_, half_;
  float last_scale_ = 1;       // of the group that was found last
  std::vector<float> sorted_;  // the values that differ
  std::vector<Value> values_;  // of these
};

}  // namespace bf16codecs::quantized
