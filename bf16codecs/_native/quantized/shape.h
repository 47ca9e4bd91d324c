#pragma once

// What numbers of a precision there are.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/quantized.h"

namespace bf16codecs::quantized {

// The bits of a number, the leading one included, and the exponent of the smallest normal one.
struct Shape {
  int bits, least_exponent;

  // The distance of two numbers near x.
  double step(double x) const {
    constexpr int kBias = 1023;
    const auto exponent = static_cast<int>(std::bit_cast<uint64_t>(x) >> 52 & 0x7FF) - kBias;
    const int of_step = std::max(exponent, least_exponent) + 1 - bits;
    return std::bit_cast<double>(static_cast<uint64_t>(of_step + kBias) << 52);
  }
  // To the nearest number.
  double round(double x) const { return std::nearbyint(x / step(x)) * step(x); }
};

constexpr Shape shape_of(Precision precision) {
  switch (precision) {
    case Precision::binary32:
      return {24, -126};
    case Precision::binary16:
      return {11, -14};
    default:
      return {8, -126};
  }
}

}  // namespace bf16codecs::quantized
