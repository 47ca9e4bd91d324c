#pragma once

// Masks of escapes in the pairs mode's kernels for NEON. Entries are bytes in four registers: those
// of the even and of the odd ones of the first 32 symbols, and those of the second 32.

#include "kernels/arm/neon_lanes.h"

namespace bf16codecs {

// A bit for each of 32 symbols, given bytes of 255 or 0 for the even and for the odd ones.
static BF16CODECS_INLINE uint64_t symbol_mask(uint8x16_t even, uint8x16_t odd) {
  return first_dword(bit_mask(vzip1q_u8(even, odd), vzip2q_u8(even, odd)));
}

// A bit for each of 64 symbols whose entry is the escape.
static BF16CODECS_INLINE uint64_t escape_mask(const uint8x16_t entries[4], uint8x16_t escape) {
  return symbol_mask(vceqq_u8(entries[0], escape), vceqq_u8(entries[1], escape)) |
         symbol_mask(vceqq_u8(entries[2], escape), vceqq_u8(entries[3], escape)) << 32;
}

// Whether there is any. It is cheaper than the mask, and nearly always false.
static BF16CODECS_INLINE bool any_escaped(const uint8x16_t entries[4], uint8x16_t escape) {
  const uint8x16_t first = vorrq_u8(vceqq_u8(entries[0], escape), vceqq_u8(entries[1], escape));
  const uint8x16_t second = vorrq_u8(vceqq_u8(entries[2], escape), vceqq_u8(entries[3], escape));
  return nibble_mask(vorrq_u8(first, second)) != 0;
}

}  // namespace bf16codecs
