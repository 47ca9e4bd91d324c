#pragma once

// The states of the rANS kernels for NEON (docs/format.md, "Interleaved rANS"): four octets a
// group, each of eight lanes, with the low and the high words of their states in two registers.
//
//   octet      x[0]         x[1]          x[2]         x[3]
//   lanes      0-7          8-15          16-23        24-31
//   symbols    even, 0-14   even, 16-30   odd, 1-15    odd, 17-31
//
// So look-ups by the low bits read x.low alone, 16 lanes at a time as bytes, and a lane needs a
// word exactly if its x.high is 0. For products of 32 bits the words are zipped to four states a
// register. Even and odd symbols are interleaved by the stores, and parted by the loads, of pairs
// (st2, ld2).
//
// Words are handed out, and collected, by byte look-ups with a row of a table for each mask of
// eight lanes, because NEON has no expand and compress.

#include "kernels/arm/neon.h"

namespace bf16codecs {

// A permutation of eight words for each mask of eight lanes, as indices of bytes.
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

// The low, and the high, halves of eight 32-bit numbers.
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

// The states of four lanes of an octet as 32-bit numbers.
static BF16CODECS_INLINE uint32x4_t first_four(const Octet& x) {
  return vreinterpretq_u32_u16(vzip1q_u16(x.low, x.high));
}
static BF16CODECS_INLINE uint32x4_t last_four(const Octet& x) {
  return vreinterpretq_u32_u16(vzip2q_u16(x.low, x.high));
}
static BF16CODECS_INLINE Octet make_octet(uint32x4_t first, uint32x4_t last) {
  return {lower_halves(first, last), upper_halves(first, last)};
}

// One bit for each of 32 bytes that are 0 or 255, in the first four bytes of the result. Byte i
// keeps bit i mod 8 alone; three additions of neighbours then add up each eight bytes.
static BF16CODECS_INLINE uint8x16_t bit_mask(uint8x16_t v, uint8x16_t w) {
  const uint8x16_t bits = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  uint8x16_t sums = vpaddq_u8(vandq_u8(v, bits), vandq_u8(w, bits));
  sums = vpaddq_u8(sums, sums);
  return vpaddq_u8(sums, sums);
}

static BF16CODECS_INLINE uint32_t first_dword(uint8x16_t v) {
  return vgetq_lane_u32(vreinterpretq_u32_u8(v), 0);
}

// The lanes of a group that read or write a word. Word k of `rows` has a bit for each lane of octet
// k, times 16: where its row begins in a table. Byte k of `bytes` is how many bytes the words of
// octets 0 ... k take: at most 64. The product with 0x02020202 adds up the counts of all octets up
// to each one, times 2, so that all four places in the words are known at once, and octets do not
// wait for the one before.
struct WordUse {
  uint64_t rows;
  uint32_t bytes;

  BF16CODECS_INLINE explicit WordUse(const uint16x8_t users[4]) {
    const uint8x16_t mask =
        bit_mask(vuzp1q_u8(vreinterpretq_u8_u16(users[0]), vreinterpretq_u8_u16(users[1])),
                 vuzp1q_u8(vreinterpretq_u8_u16(users[2]), vreinterpretq_u8_u16(users[3])));
    const uint16x8_t times_16 = vshll_n_u8(vget_low_u8(mask), 4);
    rows = vgetq_lane_u64(vreinterpretq_u64_u16(times_16), 0);
    bytes = first_dword(vcntq_u8(mask)) * 0x02020202;
  }
  BF16CODECS_INLINE uint8x16_t row(const LanePermutations& table, unsigned octet) const {
    return vld1q_u8(table.row[0] + (rows >> 16 * octet & 0xFFFF));
  }
  BF16CODECS_INLINE unsigned begin(unsigned octet) const { return octet == 0 ? 0 : end(octet - 1); }
  BF16CODECS_INLINE unsigned end(unsigned octet) const { return bytes >> 8 * octet & 255; }
};

// Gives each lane of the mask the next word. The indices of the other lanes are above 15, with
// which a look-up leaves what is there.
static constexpr LanePermutations make_expand() {
  LanePermutations expand{};
  for (unsigned m = 0; m < 256; ++m) {
    unsigned rank = 0;
    for (unsigned j = 0; j < 8; ++j) expand.set(m, j, (m >> j & 1) != 0 ? rank++ : 8);
  }
  return expand;
}

static constexpr LanePermutations kExpand = make_expand();

// if (x < 2^16) x = x << 16 | next word, lane by lane. Each octet loads 8 words, from at most 48
// bytes after `words` on, however many its lanes need.
static BF16CODECS_INLINE void renormalize(Octet x[4], const uint8_t*& words) {
  uint16x8_t low[4];
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 4; ++k) low[k] = vceqzq_u16(x[k].high);
  const WordUse use(low);
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 4; ++k) {
    x[k].high = vbslq_u16(low[k], x[k].low, x[k].high);
    x[k].low = vreinterpretq_u16_u8(vqtbx1q_u8(
        vreinterpretq_u8_u16(x[k].low), vld1q_u8(words + use.begin(k)), use.row(kExpand, k)));
  }
  words += use.end(3);
}

// Moves the words of the mask's lanes to the end, in order.
static constexpr LanePermutations make_compress() {
  LanePermutations compress{};
  for (unsigned m = 0; m < 256; ++m) {
    unsigned at = 8;
    for (unsigned j = 8; j-- != 0;) {
      if ((m >> j & 1) != 0) compress.set(m, --at, j);
    }
  }
  return compress;
}

static constexpr LanePermutations kCompress = make_compress();

// if (full) emit x, x >>= 16, from the last lane to the first. Each octet stores 16 bytes, whose
// upper ones are its words. The noise below the words of octet 0 is in the kEncodeMargin.
static BF16CODECS_INLINE void emit(Octet x[4], const uint16x8_t full[4], uint8_t*& words) {
  const WordUse use(full);
  words -= use.end(3);
  uint8_t* const noise = words - 16;
  // From the last octet to the first: the next store overwrites the noise below the words of this
  // one.
  BF16CODECS_UNROLL
  for (unsigned turn = 0; turn < 4; ++turn) {
    const unsigned k = 3 - turn;
    const uint8x16_t right = vqtbl1q_u8(vreinterpretq_u8_u16(x[k].low), use.row(kCompress, k));
    vst1q_u8(noise + use.end(k), right);
    x[k].low = vbslq_u16(full[k], x[k].high, x[k].low);
    x[k].high = vbicq_u16(x[k].high, full[k]);
  }
}

// 16 floats, made of their bytes: b0 has the lowest ones.
static BF16CODECS_INLINE void zip_floats(uint8x16_t b0, uint8x16_t b1, uint8x16_t b2, uint8x16_t b3,
                                         float32x4_t floats[4]) {
  const uint16x8_t v = vreinterpretq_u16_u8(vzip1q_u8(b0, b1));
  const uint16x8_t w = vreinterpretq_u16_u8(vzip1q_u8(b2, b3));
  floats[0] = vreinterpretq_f32_u16(vzip1q_u16(v, w));
  floats[1] = vreinterpretq_f32_u16(vzip2q_u16(v, w));
  const uint16x8_t y = vreinterpretq_u16_u8(vzip2q_u8(b0, b1));
  const uint16x8_t z = vreinterpretq_u16_u8(vzip2q_u8(b2, b3));
  floats[2] = vreinterpretq_f32_u16(vzip1q_u16(y, z));
  floats[3] = vreinterpretq_f32_u16(vzip2q_u16(y, z));
}

namespace {

// The states of a group of 32 lanes, eight in each octet.
struct NeonGroup {
  Octet x[4];

  BF16CODECS_INLINE void load(const uint32_t states[kLanesPerGroup]) {
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < 4; ++i) x[i] = load_states(states + 8 * i);
  }
  BF16CODECS_INLINE void store(uint32_t states[kLanesPerGroup]) const {
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < 4; ++i) store_states(states + 8 * i, x[i]);
  }
  // if (x < 2^16) x = x << 16 | next word, lane by lane.
  BF16CODECS_INLINE void renormalize(const uint8_t*& words) { bf16codecs::renormalize(x, words); }
};

}  // namespace
}  // namespace bf16codecs
