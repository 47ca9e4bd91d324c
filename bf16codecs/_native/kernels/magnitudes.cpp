// The portable kernels of magnitudes: the definition that the others are tested against.

#include "kernels/magnitudes.h"

#include <algorithm>
#include <bit>

namespace bf16codecs {
namespace {

// One product and one conversion: there is nothing that platforms round differently, or could fuse.
// The conversion is of signed numbers, which all instruction sets have: the number is at most 2^24.
inline uint32_t magnitude(const MagnitudeShape& shape, uint16_t key, float weight) {
  const uint32_t inside = std::min(std::max(key, shape.first), shape.last);
  const float x = std::bit_cast<float>((inside << shape.shift) + shape.bias) * weight;
  return static_cast<uint32_t>(static_cast<int32_t>(x < kMostMagnitude ? x : kMostMagnitude));
}

// Numbers up to 2^24 whose sum 32 bits hold, so that compilers can use vectors of 32-bit lanes.
constexpr size_t kSummed = 128;

MagnitudeSum sum(const MagnitudeShape& shape, const uint16_t* keys, const float* weights,
                 size_t n) {
  MagnitudeSum total{0, 0};
  for (size_t at = 0; at < n; at += kSummed) {
    const size_t end = std::min(n, at + kSummed);
    uint32_t part = 0, nonzero = 0;
    if (weights == nullptr) {
      for (size_t i = at; i < end; ++i) part += magnitude(shape, keys[i], 1.0f);
    } else {
      for (size_t i = at; i < end; ++i) part += magnitude(shape, keys[i], weights[i]);
    }
    for (size_t i = at; i < end; ++i) nonzero += keys[i] > 1;
    total.sum += part;
    total.nonzero += nonzero;
  }
  return total;
}

void add(const MagnitudeShape& shape, const uint16_t* keys, float weight, size_t n,
         uint32_t* sums) {
  const MagnitudeShape local = shape;  // a copy, which stores to `sums` cannot change
  for (size_t i = 0; i < n; ++i) sums[i] += magnitude(local, keys[i], weight);
}

}  // namespace

const MagnitudeKernels kScalarMagnitudeKernels = {.sum = sum, .add = add};

}  // namespace bf16codecs
