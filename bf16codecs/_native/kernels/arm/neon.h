#pragma once

// Helpers that the kernels for NEON share, and their declarations. NEON is the baseline of AArch64,
// so that nothing here is compiled for more than the rest of the program, and inline functions of
// the standard library do no harm. MSVC has one type for all vectors of a size: so vector constants
// come from memory, and no function is overloaded by vector types.

#include <arm_neon.h>

#include "kernels/kernels.h"

namespace bf16codecs {

// Four bits for each of 16 bytes that are 0 or 255. NEON has no instruction that takes one bit of
// each, but a narrowing shift takes the upper half of one byte and the lower half of the next.
static BF16CODECS_INLINE uint64_t nibble_mask(uint8x16_t bytes) {
  const uint8x8_t nibbles = vshrn_n_u16(vreinterpretq_u16_u8(bytes), 4);
  return vget_lane_u64(vreinterpret_u64_u8(nibbles), 0);
}

// Rotates 16 items back, given their high and low bytes: [0] has the items' lower bytes,
// low >> 1 | high << 7, and [1] the upper ones, high >> 1 | low << 7.
static BF16CODECS_INLINE uint8x16x2_t merge(uint8x16_t high, uint8x16_t low) {
  uint8x16x2_t item;
  item.val[0] = vsliq_n_u8(vshrq_n_u8(low, 1), high, 7);
  item.val[1] = vsliq_n_u8(vshrq_n_u8(high, 1), low, 7);
  return item;
}

size_t neon_pairs_decode(PairsDecoder& decoder, const uint8_t* limit, uint8_t* plane, size_t steps);
size_t neon_pairs_decode16(PairsDecoder& decoder, const uint8_t* limit, const uint8_t* low,
                           uint8_t* items, size_t steps);
void neon_pairs_encode(PairsEncoder& encoder, const uint8_t* plane, size_t steps);

extern const MagnitudeKernels kNeonMagnitudeKernels;

}  // namespace bf16codecs
