#pragma once

// Kernels of the tiles mode's encoder, which estimates the scales of rows and columns by sums of
// magnitudes. The format says nothing about them, but the encoder's bytes depend on the sums, which
// must therefore be the same for every instruction set: each magnitude is rounded to an integer
// before it is added, so that the order of additions does not matter.

#include <cstddef>
#include <cstdint>

namespace bf16codecs {

inline constexpr float kMostMagnitude = 1 << 24;

// How a key becomes a magnitude: the binary32 number with these bits, times a weight, is limited to
// kMostMagnitude and rounded down to an integer.
//
//   bits = (min(max(key, first), last) << shift) + bias
//
// The shift puts the key's exponent where binary32 has its own. The number is positive, and
// neither infinite nor subnormal, with weights from 2^-32 to 2^32 as well.
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

  // Adds magnitude i, times the weight, to sums[i].
  void (*add)(const MagnitudeShape& shape, const uint16_t* keys, float weight, size_t n,
              uint32_t* sums);
};

// The definition.
extern const MagnitudeKernels kScalarMagnitudeKernels;

}  // namespace bf16codecs
