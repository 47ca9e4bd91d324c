#pragma once

// Groups of a shape, of which some are tried: how many have a scale, and what they take then.

#include <optional>
#include <set>
#include <vector>

#include "quantized/array.h"
#include "quantized/kinds.h"

namespace bf16codecs::quantized {

struct Trial {
  unsigned found = 0, tried = 0;   // groups that are not all zeros
  std::vector<uint32_t> integers;  // how often each occurs, from the least one on
  int spread = 0;                  // the largest difference of two integers of a group
  std::set<float> tops;            // levels of the largest magnitudes
  unsigned with_one = 0;           // groups whose smallest magnitude but 0 has the level 1

  uint32_t scale_bits = 0, offset_bits = 0;  // of the mantissas of all scales and offsets

  void add(const ScaleAndOffset& numbers);
  // About the bits that a group's scale and offset take.
  unsigned number_bits() const;
  bool is_all() const { return found != 0 && found == tried; }
  // What the integers are called.
  Label label() const;
  // About the bits that an item takes less than a plain one.
  double saved_bits(const Array& array, const Kind& kind, const Groups& groups) const;
};

Trial try_groups(const Array& array, const Kind& kind, Precision precision, const Groups& groups);

// The integers as a table, if there are 2 to 16: of GGUF's IQ3_XXS, with magnitudes from 4 to
// 62, a value takes 4.1 bits then, instead of 6.1 with low bits that most codes do not need.
std::optional<Levels> as_table(const Trial& trial);

// The levels with the fewest low bits with which symbols are coded as pairs: wider tables save
// little, and decode several times slower.
Levels with_low_bits(Levels levels, const std::vector<uint32_t>& integers);

}  // namespace bf16codecs::quantized
