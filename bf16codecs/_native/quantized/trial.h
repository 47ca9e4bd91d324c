#pragma once

// Groups of a shape, of which some are tried: how many have a scale, and what they take then.

#include <cmath>
#include <set>
#include <vector>

#include "quantized/array.h"
#include "quantized/kinds.h"

namespace bf16codecs::quantized {

// Bits of an item.
struct Savings {
  double of_coded = 0, of_numbers = 0;  // that a coded item saves; that its group's numbers take

  // If this share of the items is coded.
  double with(double share) const { return of_coded * share - of_numbers; }
};

struct Trial {
  unsigned found = 0, tried = 0;   // groups that are not all zeros
  std::vector<uint32_t> integers;  // how often each occurs, from the least one on
  int spread = 0;                  // the largest difference of two integers of a group
  std::set<float> tops;            // levels of the largest magnitudes
  unsigned with_one = 0;           // groups whose smallest magnitude but 0 has the level 1

  float least_scale = HUGE_VALF, most_scale = 0;  // magnitudes

  uint32_t scale_bits = 0, offset_bits = 0;  // of the mantissas of all scales and offsets

  void add(const ScaleAndOffset& numbers);
  // About the bits that a group's scale and offset take.
  unsigned number_bits() const;
  bool is_all() const { return found != 0 && found == tried; }
  // Whether the scales are one, as far as bfloat16 tells.
  bool has_one_scale() const { return most_scale < least_scale * 1.02f; }
  // What the kind's items are best coded as.
  Levels levels(const Kind& kind) const;
  // What the integers are called.
  Label label() const;
  // About the bits that items take less than plain ones.
  Savings savings(const Array& array, const Kind& kind, const Groups& groups) const;
};

Trial try_groups(const Array& array, const Kind& kind, Precision precision, const Groups& groups);

}  // namespace bf16codecs::quantized
