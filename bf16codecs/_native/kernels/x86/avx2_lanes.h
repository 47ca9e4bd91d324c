#pragma once

// What the rANS kernels for AVX2 share: eight lanes in a register. Everything is static: each of
// their files has its own.

#include "kernels/x86/avx2.h"

namespace bf16codecs {

// Shuffles for a mask of eight lanes: `expand` gives each lane of the mask the next word, and the
// others 0; `compress` moves the words of the lanes that are not in the mask to the end.
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

static BF16CODECS_INLINE unsigned lane_mask(__m256i v) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(v)));
}

// if (x < 2^16) x = x << 16 | next word, lane by lane.
static BF16CODECS_INLINE void renormalize(__m256i& x, const uint8_t*& words) {
  const __m256i low = _mm256_cmpeq_epi32(_mm256_srli_epi32(x, 16), _mm256_setzero_si256());
  const unsigned mask = lane_mask(low);
  const __m256i next = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load16(words)),
                                           load(kLaneShuffles.expand[mask]));
  words += 2 * popcount(mask);
  x = _mm256_blendv_epi8(x, _mm256_or_si256(_mm256_slli_epi32(x, 16), next), low);
}

// if (!keep) emit x, x >>= 16, from the last lane to the first. Writes 16 bytes below `words` of
// which the lower ones are not yet final.
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

// The lower halves of 8 lanes and of the 8 that are 16 lanes on: word 2 i is lane i's, word
// 2 i + 1 lane i + 16's, as their symbols stand.
static BF16CODECS_INLINE __m256i lower_halves(__m256i even, __m256i odd) {
  return _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xAA);
}

// The two back again.
static BF16CODECS_INLINE __m256i even_lanes(__m256i v) {
  return _mm256_and_si256(v, _mm256_set1_epi32(0xFFFF));
}
static BF16CODECS_INLINE __m256i odd_lanes(__m256i v) {
  return _mm256_srli_epi32(v, 16);
}

struct Divided {
  __m256i q, r;
};

// q = x div f,  r = x mod f,  for q < 2^20.
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
  const __m256i exact = _mm256_cmpgt_epi32(f, r);
  q = _mm256_add_epi32(q, _mm256_andnot_si256(exact, _mm256_set1_epi32(1)));
  r = _mm256_sub_epi32(r, _mm256_andnot_si256(exact, f));
  return {q, r};
}

namespace {

// The states of a group of 32 lanes, eight in each.
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
