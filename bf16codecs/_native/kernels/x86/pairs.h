#pragma once

// What the pairs mode's decoders for AVX2 and AVX-512 share. Each file that includes this has a
// copy of its own, built for its instruction set.

#include "kernels/bits.h"
#include "kernels/pairs_escapes.h"

namespace bf16codecs {
namespace {

// The mask over a group's dword bytes as a mask over its 64 places.
BF16CODECS_INLINE uint64_t by_place(uint64_t bytes) {
  uint64_t places = 0;
  for (; bytes != 0; bytes &= bytes - 1) {
    const unsigned at = first_bit(bytes);
    places |= uint64_t{1} << (2 * (at / 4) + (at % 4 >> 1) + (at & 1) * 32);
  }
  return places;
}

template <typename Sink>
BF16CODECS_COLD void patch_escapes(PairsDecoder& d, uint64_t bytes, size_t at, Sink& sink) {
  patch_places(d, by_place(bytes), at, sink);
}

}  // namespace
}  // namespace bf16codecs
