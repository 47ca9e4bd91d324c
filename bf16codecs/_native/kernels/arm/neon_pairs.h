#pragma once

// Masks of escapes in the pairs mode's kernels for NEON. Entries are bytes in four registers: those
// of the even and of the odd ones of the first 32 symbols, and those of the second 32.

#include "kernels/arm/neon_lanes.h"

namespace bf16codecs {

// Two bits for each of 16 lanes, of bytes of 255 or 0 for their even and their odd symbols, in four
// bytes that are to be added up.
static BF16CODECS_INLINE uint8x16_t symbol_bits(uint8x16_t even, uint8x16_t odd) {
  const uint8x16_t places = vreinterpretq_u8_u32(vdupq_n_u32(0xC0300C03));
  return vandq_u8(vbslq_u8(vdupq_n_u8(0x55), even, odd), places);
}

// A bit for each of 64 symbols whose entry is the escape.
static BF16CODECS_INLINE uint64_t escape_mask(const uint8x16_t entries[4], uint8x16_t escape) {
  const uint8x16_t first = symbol_bits(vceqq_u8(entries[0], escape), vceqq_u8(entries[1], escape));
  const uint8x16_t second = symbol_bits(vceqq_u8(entries[2], escape), vceqq_u8(entries[3], escape));
  const uint8x16_t sums = vpaddq_u8(first, second);
  return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)), 0);
}

// Whether there is any, given the entries' minimum, where the escape is the lowest of them, or
// their maximum, where it is the highest. It is cheaper than the mask, and nearly always false.
static BF16CODECS_INLINE bool any_escaped(uint8x16_t extreme, uint8x16_t escape) {
  return nibble_mask(vceqq_u8(extreme, escape)) != 0;
}

}  // namespace bf16codecs
