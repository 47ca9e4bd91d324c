#pragma once

// Ranges of numbers that a scale or an offset may be.

#include <algorithm>

namespace bf16codecs::quantized {

struct Range {
  double low = 0, high = 0;  // none if low > high

  void limit(double least, double most) {
    low = std::max(low, least);
    high = std::min(high, most);
  }
};

}  // namespace bf16codecs::quantized
