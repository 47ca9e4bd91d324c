#pragma once

// Kernels::differing_bits for AVX2 and AVX-512, whose POPCNT counts 64 bits at a time. Each file
// that includes this has a copy of its own, built for its instruction set.

#include <immintrin.h>

#include <cstring>

#include "kernels/kernels.h"

namespace bf16codecs {
namespace {

size_t differing_bits(const uint8_t* a, const uint8_t* b, size_t n) {
  size_t count = 0;
  for (size_t i = 0; i < 8 * n; i += 8) {
    uint64_t x, y;
    std::memcpy(&x, a + i, sizeof x);
    std::memcpy(&y, b + i, sizeof y);
    count += static_cast<size_t>(_mm_popcnt_u64(x ^ y));
  }
  return count;
}

}  // namespace
}  // namespace bf16codecs
