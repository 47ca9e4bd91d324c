#pragma once

// What the pairs mode's decoders for AVX2 and AVX-512 share. Each file that includes this has a
// copy of its own, built for its instruction set.

#include "kernels/bits.h"

namespace bf16codecs {
namespace {

// Escapes of a group, as a mask over the bytes of its results: each dword has the bytes
// (even a, even b, odd a, odd b) of two lanes.
struct DwordBytes {
  uint64_t mask;

  BF16CODECS_INLINE bool any() const { return mask != 0; }
  uint64_t places() const {
    uint64_t places = 0;
    for (uint64_t left = mask; left != 0; left &= left - 1) {
      const unsigned at = first_bit(left);
      places |= uint64_t{1} << (2 * (at / 4) + (at % 4 >> 1) + (at & 1) * 32);
    }
    return places;
  }
};

}  // namespace
}  // namespace bf16codecs
