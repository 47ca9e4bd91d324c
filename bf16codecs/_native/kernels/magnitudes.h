#pragma once

// Kernels of the tiles mode's encoder, which estimates scales by sums of magnitudes.

#include <cstddef>
#include <cstdint>

namespace bf16codecs {

inline constexpr float kMostMagnitude = 1 << 24;

// How a key becomes a magnitude, an integer: the float of these bits, times a weight, is cut to
// kMostMagnitude and rounded down. So all platforms have the same.
//
//   bits = (min(max(key, first), last) << shift) + bias
//
// They are those of a positive number. Weights are from 2^-32 to 2^32: with them, too, it is
// neither infinite nor subnormal.
struct MagnitudeShape {
  uint16_t first, last;
  unsigned shift;  // 12 to 20
  uint32_t bias;   // modulo 2^32
};

struct MagnitudeSum {
  uint64_t sum;
  size_t nonzero;  // keys above 1, which is the zero of negative sign
};

struct MagnitudeKernels {
  // Sums n magnitudes, each times its weight; where weights are null, they are 1.
  MagnitudeSum (*sum)(const MagnitudeShape& shape, const uint16_t* keys, const float* weights,
                      size_t n);

  // sums[i] += magnitude i, times the weight.
  void (*add)(const MagnitudeShape& shape, const uint16_t* keys, float weight, size_t n,
              uint32_t* sums);
};

// The definition.
extern const MagnitudeKernels kScalarMagnitudeKernels;

}  // namespace bf16codecs
