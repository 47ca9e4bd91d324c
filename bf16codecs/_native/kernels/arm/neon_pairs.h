#pragma once

// What the pairs mode's kernels for NEON share.

#include "kernels/arm/neon_lanes.h"

namespace bf16codecs {

// The places among 32 of which the even ones and the odd ones are 255, not 0.
static BF16CODECS_INLINE uint64_t places(uint8x16_t even, uint8x16_t odd) {
  return first_dword(bit_mask(vzip1q_u8(even, odd), vzip2q_u8(even, odd)));
}

// The places among 64 whose entry is the escape; entries of the even and the odd places of the
// first half, then of the second.
static BF16CODECS_INLINE uint64_t escaped_places(const uint8x16_t entries[4], uint8x16_t escape) {
  return places(vceqq_u8(entries[0], escape), vceqq_u8(entries[1], escape)) |
         places(vceqq_u8(entries[2], escape), vceqq_u8(entries[3], escape)) << 32;
}

static BF16CODECS_INLINE bool any_escaped(const uint8x16_t entries[4], uint8x16_t escape) {
  const uint8x16_t first = vorrq_u8(vceqq_u8(entries[0], escape), vceqq_u8(entries[1], escape));
  const uint8x16_t second = vorrq_u8(vceqq_u8(entries[2], escape), vceqq_u8(entries[3], escape));
  return nibble_mask(vorrq_u8(first, second)) != 0;
}

}  // namespace bf16codecs
