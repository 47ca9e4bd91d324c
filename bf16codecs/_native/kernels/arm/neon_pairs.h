#pragma once

// What the pairs mode's kernels for NEON share.

#include "kernels/arm/neon.h"

namespace bf16codecs {

// A permutation of eight words for each mask of eight lanes.
struct LanePermutations {
  alignas(64) uint8_t row[256][16];

  constexpr void set(unsigned mask, unsigned lane, unsigned from) {
    row[mask][2 * lane] = static_cast<uint8_t>(2 * from);
    row[mask][2 * lane + 1] = static_cast<uint8_t>(2 * from + 1);
  }
};

// The states of eight lanes, x = high << 16 | low.
struct Octet {
  uint16x8_t low, high;
};

static BF16CODECS_INLINE uint16x8_t lower_halves(uint32x4_t v, uint32x4_t w) {
  return vuzp1q_u16(vreinterpretq_u16_u32(v), vreinterpretq_u16_u32(w));
}
static BF16CODECS_INLINE uint16x8_t upper_halves(uint32x4_t v, uint32x4_t w) {
  return vuzp2q_u16(vreinterpretq_u16_u32(v), vreinterpretq_u16_u32(w));
}

static BF16CODECS_INLINE Octet load_states(const uint32_t x[8]) {
  const uint32x4_t v = vld1q_u32(x), w = vld1q_u32(x + 4);
  return {lower_halves(v, w), upper_halves(v, w)};
}

static BF16CODECS_INLINE void store_states(uint32_t x[8], const Octet& octet) {
  vst1q_u32(x, vreinterpretq_u32_u16(vzip1q_u16(octet.low, octet.high)));
  vst1q_u32(x + 4, vreinterpretq_u32_u16(vzip2q_u16(octet.low, octet.high)));
}

// One bit for each of 32 bytes that are 0 or 255, in the first four bytes.
static BF16CODECS_INLINE uint8x16_t bit_mask(uint8x16_t v, uint8x16_t w) {
  const uint8x16_t bits = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  uint8x16_t sums = vpaddq_u8(vandq_u8(v, bits), vandq_u8(w, bits));
  sums = vpaddq_u8(sums, sums);
  return vpaddq_u8(sums, sums);
}

static BF16CODECS_INLINE uint32_t first_dword(uint8x16_t v) {
  return vgetq_lane_u32(vreinterpretq_u32_u8(v), 0);
}

// Which of a group's lanes read or write a word: byte k of `lanes` has a bit for each lane of
// octet k, byte k of `bytes` says how many bytes those of octets 0 to k take together.
struct WordUse {
  uint32_t lanes, bytes;

  BF16CODECS_INLINE explicit WordUse(const uint16x8_t users[4]) {
    const uint8x16_t mask =
        bit_mask(vuzp1q_u8(vreinterpretq_u8_u16(users[0]), vreinterpretq_u8_u16(users[1])),
                 vuzp1q_u8(vreinterpretq_u8_u16(users[2]), vreinterpretq_u8_u16(users[3])));
    lanes = first_dword(mask);
    bytes = first_dword(vcntq_u8(mask)) * 0x02020202;
  }
  BF16CODECS_INLINE uint8x16_t row(const LanePermutations& table, unsigned octet) const {
    return vld1q_u8(table.row[lanes >> 8 * octet & 255]);
  }
  BF16CODECS_INLINE unsigned begin(unsigned octet) const { return octet == 0 ? 0 : end(octet - 1); }
  BF16CODECS_INLINE unsigned end(unsigned octet) const { return bytes >> 8 * octet & 255; }
};

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
