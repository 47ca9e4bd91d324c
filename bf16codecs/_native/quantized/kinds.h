#pragma once

// The kinds of levels that libraries quantise to.

#include <set>
#include <vector>

#include "quantized/scales.h"

namespace bf16codecs::quantized {

// In the order in which they are tried: of two that explain the same items, the one with smaller
// codes comes first.
const std::vector<Kind>& known_kinds();

// The kinds with offsets. They also explain some items that products explain with fewer numbers.
const std::vector<Kind>& kinds_with_offsets();

// The kinds that scales are quantised to, and how many of them have a scale together.
struct InnerKind {
  Kind kind;
  uint32_t width;
};
const std::vector<InnerKind>& inner_kinds();

// What integers are called by the magnitudes that occur, and the largest difference of two in a
// group.
Label label_of_integers(const std::set<int>& magnitudes, int spread);

}  // namespace bf16codecs::quantized
