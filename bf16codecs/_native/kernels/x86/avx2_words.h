#pragma once

// The states of the rANS kernels for AVX2 (docs/format.md, "Interleaved rANS").
//
// A state is held in two halves of 16 bits, those of 16 lanes in a register: products, remainders
// and comparisons of words cost half as much as those of 32-bit numbers, which AVX2 multiplies in
// two steps, and the low halves are the slots. Carries are found by comparisons.
//
//   lanes[0]   0-15    the even symbols of a step
//   lanes[1]   16-31   the odd ones
//
// Bytes of all lanes are in the order in which words are packed, since packs and unpacks work
// within 128 bits: lanes 0-7, 16-23, 8-15, 24-31. Everything is static, so that each file has a
// copy of its own.

#include "kernels/x86/avx2.h"

namespace bf16codecs {

// Byte shuffles by a mask of eight lanes. expand: word j is the next word if lane j is in the mask,
// otherwise 0. compress: the words of the lanes in the mask move to the end, in order.
struct WordShuffles {
  alignas(16) uint8_t expand[256][16], compress[256][16];
};

static constexpr WordShuffles make_word_shuffles() {
  WordShuffles shuffles{};
  for (unsigned m = 0; m < 256; ++m) {
    unsigned rank = 0, at = 8;
    for (unsigned j = 0; j < 8; ++j) {
      const bool is_set = (m >> j & 1) != 0;
      for (unsigned byte = 0; byte < 2; ++byte) {
        shuffles.expand[m][2 * j + byte] = is_set ? static_cast<uint8_t>(2 * rank + byte) : 128;
      }
      rank += is_set;
    }
    for (unsigned j = 8; j-- != 0;) {
      if ((m >> j & 1) == 0) continue;
      --at;
      shuffles.compress[m][2 * at] = static_cast<uint8_t>(2 * j);
      shuffles.compress[m][2 * at + 1] = static_cast<uint8_t>(2 * j + 1);
    }
  }
  return shuffles;
}

static constexpr WordShuffles kWordShuffles = make_word_shuffles();

// Two halves of 128 bits from memory.
static BF16CODECS_INLINE __m256i load_halves(const uint8_t* low, const uint8_t* high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(low)), load16(high), 1);
}

// a >= b, of unsigned numbers, for which AVX2 has no comparison.
static BF16CODECS_INLINE __m256i words_at_least(__m256i a, __m256i b) {
  return _mm256_cmpeq_epi16(_mm256_max_epu16(a, b), a);
}

// 32 words: lanes 0-15 and 16-31.
struct LaneWords {
  __m256i v[2];

  BF16CODECS_INLINE __m256i operator[](unsigned k) const { return v[k]; }
};

// Makes words of their low and high bytes, and bytes of words below 256.
static BF16CODECS_INLINE LaneWords zip(__m256i low, __m256i high) {
  return {{_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)}};
}
static BF16CODECS_INLINE __m256i to_bytes(const LaneWords& words) {
  return _mm256_packus_epi16(words[0], words[1]);
}

// Brings 32 bytes from the order of the symbols to that of the lanes, and back: bytes 2 i and
// 2 i + 1 are those of lanes i and 16 + i.
static BF16CODECS_INLINE __m256i to_lanes(__m256i symbols) {
  static constexpr uint8_t kPart[16] = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};
  return _mm256_shuffle_epi8(symbols, twice(kPart));
}
static BF16CODECS_INLINE __m256i to_symbols(__m256i lanes) {
  static constexpr uint8_t kJoin[16] = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};
  return _mm256_shuffle_epi8(lanes, twice(kJoin));
}

// A mask of the lanes of a group, as movemask gives it: of lanes 0-7, 16-23, 8-15 and 24-31 from
// the lowest bit up. Words belong to lanes in turns of eight.
struct LaneMask {
  static constexpr unsigned kTurnAt[4] = {0, 16, 8, 24};
  static constexpr uint32_t kBefore[4] = {0, 0x000000FF, 0x00FF00FF, 0x00FFFFFF};
  uint32_t bits;

  // Of words that are all ones or zero.
  explicit BF16CODECS_INLINE LaneMask(const LaneWords& set)
      : bits(static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_packs_epi16(set[0], set[1])))) {}

  // The bytes of the words of all lanes, of those before a turn, and of those after it.
  BF16CODECS_INLINE size_t size() const { return 2 * size_t{popcount(bits)}; }
  BF16CODECS_INLINE size_t size_before(unsigned turn) const {
    return 2 * size_t{popcount(bits & kBefore[turn])};
  }
  BF16CODECS_INLINE size_t size_after(unsigned turn) const {
    return turn == 3 ? 0 : 2 * size_t{popcount(bits & ~kBefore[turn + 1])};
  }
  // The shuffles of two turns, `turn` and the next one.
  BF16CODECS_INLINE __m256i shuffles(const uint8_t by_mask[256][16], unsigned turn) const {
    return load_halves(by_mask[bits >> kTurnAt[turn] & 255],
                       by_mask[bits >> kTurnAt[turn + 1] & 255]);
  }
};

struct FloatHalves {
  __m256 lower, upper;  // lanes 0-3 and 8-11, and the others, as unpacking leaves them
};

// 16 words, and states, as binary32. Numbers that begin with 0x4B00 and 0x5300 are 2^23 + low and
// 2^39 + 2^16 high. Their difference is exact, so that a state is rounded once.
static BF16CODECS_INLINE FloatHalves to_floats(__m256i words) {
  const __m256i zero = _mm256_setzero_si256();
  return {_mm256_cvtepi32_ps(_mm256_unpacklo_epi16(words, zero)),
          _mm256_cvtepi32_ps(_mm256_unpackhi_epi16(words, zero))};
}
static BF16CODECS_INLINE FloatHalves to_floats(__m256i low, __m256i high) {
  const __m256 excess = _mm256_set1_ps(0x1p39f + 0x1p23f);
  const auto sum = [&](__m256i a, __m256i b) {
    return _mm256_add_ps(_mm256_sub_ps(_mm256_castsi256_ps(b), excess), _mm256_castsi256_ps(a));
  };
  const __m256i p23 = words_of(0x4B00), p39 = words_of(0x5300);
  return {sum(_mm256_unpacklo_epi16(low, p23), _mm256_unpacklo_epi16(high, p39)),
          sum(_mm256_unpackhi_epi16(low, p23), _mm256_unpackhi_epi16(high, p39))};
}

struct Quotients {
  __m256i low, high;  // q mod 2^16, q div 16
};

namespace {

// The states of 16 lanes.
struct WordStates {
  __m256i low, high;

  BF16CODECS_INLINE void load(const uint32_t x[16]) {
    const __m256i word = _mm256_set1_epi32(0xFFFF);
    const __m256i v = bf16codecs::load(x), w = bf16codecs::load(x + 8);
    low = in_order(_mm256_packus_epi32(_mm256_and_si256(v, word), _mm256_and_si256(w, word)));
    high = in_order(_mm256_packus_epi32(_mm256_srli_epi32(v, 16), _mm256_srli_epi32(w, 16)));
  }
  BF16CODECS_INLINE void store(uint32_t x[16]) const {
    const __m256i v = in_order(low), w = in_order(high);
    bf16codecs::store(x, _mm256_unpacklo_epi16(v, w));
    bf16codecs::store(x + 8, _mm256_unpackhi_epi16(v, w));
  }

  // x = factor high + term, for a sum below 2^32. The sum of the low halves carries if it is below
  // the term.
  BF16CODECS_INLINE void multiply_high(__m256i factor, __m256i term) {
    low = _mm256_add_epi16(_mm256_mullo_epi16(factor, high), term);
    const __m256i carry = _mm256_min_epu16(_mm256_subs_epu16(term, low), words_of(1));
    high = _mm256_add_epi16(_mm256_mulhi_epu16(factor, high), carry);
  }

  // x = f (x div 4096) + rank, below 2^32, given 16 f.
  BF16CODECS_INLINE void advance(__m256i f16, __m256i rank) {
    // x div 4096 is 16 high + low div 4096. f (low div 4096) + rank is below 16 f, and a word.
    const __m256i f = _mm256_srli_epi16(f16, 4), part = _mm256_srli_epi16(low, 12);
    multiply_high(f16, _mm256_add_epi16(_mm256_mullo_epi16(f, part), rank));
  }

  // x = x div 2^n, given 2^(16 - n), which is 0 where n = 0.
  BF16CODECS_INLINE void shift_right(__m256i power) {
    const __m256i is_none = _mm256_cmpeq_epi16(power, _mm256_setzero_si256());
    const __m256i moved =
        _mm256_or_si256(_mm256_mulhi_epu16(low, power), _mm256_mullo_epi16(high, power));
    low = _mm256_blendv_epi8(moved, low, is_none);
    high = _mm256_blendv_epi8(_mm256_mulhi_epu16(high, power), high, is_none);
  }

  // x = x 2^n + rest, given 2^n.
  BF16CODECS_INLINE void shift_left(__m256i power, __m256i rest) {
    const __m256i over = _mm256_mulhi_epu16(low, power);
    high = _mm256_or_si256(_mm256_mullo_epi16(high, power), over);
    low = _mm256_or_si256(_mm256_mullo_epi16(low, power), rest);
  }

  // q or q - 1 for q = x div f, where q < 2^20 and f < 2^12. The state's rounding, of 2^-24, and
  // the quotient's are an error of at most 2^-4 + 2^-5, so that 1/8 less is below the quotient by
  // less than 1. Subtracting it is exact, being a multiple of the last place of all numbers below
  // 2^20.
  BF16CODECS_INLINE Quotients divide_roughly(__m256i f) const {
    const FloatHalves x = to_floats(low, high), by = to_floats(f);
    const __m256 margin = _mm256_set1_ps(0.125f);
    const auto divide = [&](__m256 a, __m256 b) {
      return _mm256_cvttps_epi32(_mm256_sub_ps(_mm256_div_ps(a, b), margin));
    };
    const __m256i v = divide(x.lower, by.lower), w = divide(x.upper, by.upper);
    const __m256i word = _mm256_set1_epi32(0xFFFF);
    return {_mm256_packus_epi32(_mm256_and_si256(v, word), _mm256_and_si256(w, word)),
            _mm256_packus_epi32(_mm256_srli_epi32(v, 4), _mm256_srli_epi32(w, 4))};
  }

  // x = 4096 (x div f), whose low 12 bits are left to the caller; returns x mod f. `q` is that of
  // divide_roughly().
  BF16CODECS_INLINE __m256i divide(__m256i f, const Quotients& q) {
    // 0 <= r < 2 f < 2^13
    const __m256i r = _mm256_sub_epi16(low, _mm256_mullo_epi16(q.low, f));
    const __m256i less = _mm256_sub_epi16(r, f);
    const __m256i is_short = _mm256_cmpgt_epi16(less, words_of(0xFFFF));
    low = _mm256_slli_epi16(_mm256_sub_epi16(q.low, is_short), 12);
    // One more carries from the lowest four bits of q if they are 0 then.
    const __m256i wraps = _mm256_cmpeq_epi16(low, _mm256_setzero_si256());
    high = _mm256_sub_epi16(q.high, _mm256_and_si256(is_short, wraps));
    return _mm256_min_epu16(r, less);
  }
};

// The states of a group of 32 lanes.
struct WordGroup {
  WordStates lanes[2];

  BF16CODECS_INLINE void load(const uint32_t x[kLanesPerGroup]) {
    lanes[0].load(x), lanes[1].load(x + 16);
  }
  BF16CODECS_INLINE void store(uint32_t x[kLanesPerGroup]) const {
    lanes[0].store(x), lanes[1].store(x + 16);
  }
  BF16CODECS_INLINE LaneWords low() const { return {{lanes[0].low, lanes[1].low}}; }

  // if (x < 2^16) x = x << 16 | next word, lane by lane. Loads up to 64 bytes, however many words
  // the lanes need.
  BF16CODECS_INLINE void renormalize(const uint8_t*& words) {
    const __m256i zero = _mm256_setzero_si256();
    const LaneWords is_low = {
        {_mm256_cmpeq_epi16(lanes[0].high, zero), _mm256_cmpeq_epi16(lanes[1].high, zero)}};
    const LaneMask mask(is_low);
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 2; ++k) {
      WordStates& x = lanes[k];
      const __m256i all =
          load_halves(words + mask.size_before(2 * k), words + mask.size_before(2 * k + 1));
      const __m256i next = _mm256_shuffle_epi8(all, mask.shuffles(kWordShuffles.expand, 2 * k));
      // `next` is 0 where no word is needed, and the high half where one is.
      x.high = _mm256_or_si256(x.high, _mm256_and_si256(is_low[k], x.low));
      x.low = _mm256_or_si256(_mm256_andnot_si256(is_low[k], x.low), next);
    }
    words += mask.size();
  }

  // if (x >= limit << 16) emit x mod 2^16, x >>= 16, from the last lane to the first. Stores 16
  // bytes below `words`, whose upper ones are the emitted words, in the order of the lanes. The
  // lower ones are noise that the next words overwrite, or that is in the kEncodeMargin.
  BF16CODECS_INLINE void make_room(const LaneWords& limit, uint8_t*& words) {
    const LaneWords is_full = {
        {words_at_least(lanes[0].high, limit[0]), words_at_least(lanes[1].high, limit[1])}};
    const LaneMask mask(is_full);
    BF16CODECS_UNROLL
    for (unsigned turn = 0; turn < 2; ++turn) {
      const unsigned k = 1 - turn;
      WordStates& x = lanes[k];
      const __m256i moved =
          _mm256_shuffle_epi8(x.low, mask.shuffles(kWordShuffles.compress, 2 * k));
      store16(words - mask.size_after(2 * k + 1) - 16, _mm256_extracti128_si256(moved, 1));
      store16(words - mask.size_after(2 * k) - 16, _mm256_castsi256_si128(moved));
      x.low = _mm256_blendv_epi8(x.low, x.high, is_full[k]);
      x.high = _mm256_andnot_si256(is_full[k], x.high);
    }
    words -= mask.size();
  }
};

}  // namespace
}  // namespace bf16codecs
