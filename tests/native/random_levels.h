#pragma once

// Levels of all families, for tests.

#include "check.h"
#include "kernels/quantized.h"

namespace bf16codecs::test {

// Integers without offsets, floats, or a table of the levels that level(i) gives.
template <typename Level>
Levels random_levels(Random& random, Level level) {
  Levels levels;
  levels.family = Family{static_cast<uint8_t>(random.below(3))};
  switch (levels.family) {
    case Family::integers:
      levels.low_bits = random.below(5);
      break;
    case Family::floats:
      levels.low_bits = 1 + random.below(4);
      levels.bias = static_cast<int>(random.below(16));
      break;
    case Family::table:
      levels.count = 2 + random.below(kMostLevels - 1);
      for (unsigned i = 0; i < levels.count; ++i) levels.table[i] = level(i);
  }
  return levels;
}

}  // namespace bf16codecs::test
