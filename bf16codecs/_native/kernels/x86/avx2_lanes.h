#pragma once

// The states of the rANS kernels for AVX2 (docs/format.md, "Interleaved rANS"): eight 32-bit states
// in a register, four registers a group.
//
//   register   x[0]         x[1]          x[2]         x[3]
//   lanes      0-7          8-15          16-23        24-31
//   symbols    even, 0-14   even, 16-30   odd, 1-15    odd, 17-31
//
// lower_halves() joins x[0] with x[2], and x[1] with x[3]: words in the order of the symbols.
// Words are handed out, and collected, by byte shuffles from a table by the mask of eight lanes,
// because AVX2 has no expand and compress.
//
// Everything is static, so that each file has a copy of its own.

#include "kernels/x86/avx2.h"

namespace bf16codecs {

// Byte shuffles by a mask of eight lanes. expand: dword j gets the next word if lane j is in the
// mask, otherwise 0. A shuffle stays within 128 bits, so it is given the same eight words in both
// halves. compress: of eight words, those of the lanes that are *not* in the mask move to the end,
// in order.
struct LaneShuffles {
  alignas(32) uint8_t expand[256][32], compress[256][16];
};

static constexpr LaneShuffles make_lane_shuffles() {
  LaneShuffles shuffles{};
  for (unsigned m = 0; m < 256; ++m) {
    unsigned rank = 0;
    for (unsigned j = 0; j < 8; ++j) {
      const bool is_set = (m >> j & 1) != 0;
      for (unsigned byte = 0; byte < 4; ++byte) {
        shuffles.expand[m][4 * j + byte] =
            is_set && byte < 2 ? static_cast<uint8_t>(2 * rank + byte) : 128;
      }
      rank += is_set;
    }
    unsigned at = 8;
    for (unsigned j = 8; j-- != 0;) {
      if ((m >> j & 1) != 0) continue;
      --at;
      shuffles.compress[m][2 * at] = static_cast<uint8_t>(2 * j);
      shuffles.compress[m][2 * at + 1] = static_cast<uint8_t>(2 * j + 1);
    }
  }
  return shuffles;
}

static constexpr LaneShuffles kLaneShuffles = make_lane_shuffles();

// The highest bits of eight lanes.
static BF16CODECS_INLINE unsigned lane_mask(__m256i v) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(v)));
}

// if (x < 2^16) x = x << 16 | next word, lane by lane. Always loads 8 words, however many the lanes
// need. AVX2 compares signed numbers alone, so the test is x >> 16 == 0.
static BF16CODECS_INLINE void renormalize(__m256i& x, const uint8_t*& words) {
  const __m256i low = _mm256_cmpeq_epi32(_mm256_srli_epi32(x, 16), _mm256_setzero_si256());
  const unsigned mask = lane_mask(low);
  const __m256i next = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load16(words)),
                                           load(kLaneShuffles.expand[mask]));
  words += 2 * popcount(mask);
  x = _mm256_blendv_epi8(x, _mm256_or_si256(_mm256_slli_epi32(x, 16), next), low);
}

// if (!keep) emit x, x >>= 16, from the last lane to the first. Stores 16 bytes below `words`,
// whose upper ones are the emitted words, in the order of the lanes. The lower ones are noise that
// the next words overwrite, or that is in the kEncodeMargin.
static BF16CODECS_INLINE void emit(__m256i& x, __m256i keep, uint8_t*& words) {
  const unsigned kept = lane_mask(keep);
  const __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(0xFFFF));
  const __m128i all =
      _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  words -= 16;
  store16(words, _mm_shuffle_epi8(all, load16(kLaneShuffles.compress[kept])));
  words += 2 * popcount(kept);
  x = _mm256_blendv_epi8(_mm256_srli_epi32(x, 16), x, keep);
}

// Joins the lower halves of 8 lanes and of the 8 that are 16 lanes on, in the order of their
// symbols: word 2 i is lane i's, word 2 i + 1 lane 16 + i's.
static BF16CODECS_INLINE __m256i lower_halves(__m256i even, __m256i odd) {
  return _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xAA);
}

// Part such words again, and extend them to 32 bits.
static BF16CODECS_INLINE __m256i even_lanes(__m256i v) {
  return _mm256_and_si256(v, _mm256_set1_epi32(0xFFFF));
}
static BF16CODECS_INLINE __m256i odd_lanes(__m256i v) {
  return _mm256_srli_epi32(v, 16);
}

struct Divided {
  __m256i q, r;
};

// q = x div f,  r = x mod f,  for q < 2^20 and f < 2^12. AVX2 converts signed numbers alone to
// binary32, so it is given half of x, which is below 2^31.
static BF16CODECS_INLINE Divided divide_lanes(__m256i x, __m256i f) {
  // 2 (h / f) with h = x div 2 - x div 2^22 is the quotient or short of it by less than 1, before
  // it is truncated. It is not too large: to binary32, h is exact below 2^24 and the quotient's
  // rounding does not reach the next half; from there on, two roundings of 2^-24 are less than what
  // x div 2^22 takes away, of x at least 7/8 of 2^-21. And it is short by at most 1/f where f < 5
  // and so x < 2^22; else by 1/5 for x mod 2, 1/2 for x div 2^22 and 1/8 for the roundings.
  const __m256i half = _mm256_sub_epi32(_mm256_srli_epi32(x, 1), _mm256_srli_epi32(x, 22));
  const __m256 half_quotient = _mm256_div_ps(_mm256_cvtepi32_ps(half), _mm256_cvtepi32_ps(f));
  __m256i q = _mm256_cvttps_epi32(_mm256_add_ps(half_quotient, half_quotient));
  __m256i r = _mm256_sub_epi32(x, _mm256_mullo_epi32(q, f));
  // 0 <= r < 2 f < 2^13: a signed comparison will do.
  const __m256i exact = _mm256_cmpgt_epi32(f, r);
  q = _mm256_add_epi32(q, _mm256_andnot_si256(exact, _mm256_set1_epi32(1)));
  r = _mm256_sub_epi32(r, _mm256_andnot_si256(exact, f));
  return {q, r};
}

namespace {

// The states of a group of 32 lanes, eight in each register.
struct Avx2Group {
  __m256i x[4];

  BF16CODECS_INLINE void load(const uint32_t states[kLanesPerGroup]) {
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < 4; ++i) x[i] = bf16codecs::load(states + 8 * i);
  }
  BF16CODECS_INLINE void store(uint32_t states[kLanesPerGroup]) const {
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < 4; ++i) bf16codecs::store(states + 8 * i, x[i]);
  }
  // if (x < 2^16) x = x << 16 | next word, lane by lane.
  BF16CODECS_INLINE void renormalize(const uint8_t*& words) {
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < 4; ++i) bf16codecs::renormalize(x[i], words);
  }
};

}  // namespace
}  // namespace bf16codecs
