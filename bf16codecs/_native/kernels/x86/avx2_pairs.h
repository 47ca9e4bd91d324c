#pragma once

// The states of the pairs mode's kernels for AVX2 (docs/format.md, "rANS plane, pairs").
//
// A state is held in two halves of 16 bits, those of 16 lanes in a register: products, remainders
// and comparisons of words cost half as much as those of 32-bit numbers, which AVX2 multiplies in
// two steps, and the low halves are the slots. `even` lanes are 0-15, `odd` ones 16-31; their words
// are in the order of the lanes, so that byte 2 k of the slots is lane k's first symbol, and byte
// 2 k + 1 its second, which is 32 places on.
//
// Each file that includes this has a copy of its own, built for its instruction set.

#include "kernels/x86/avx2.h"

namespace bf16codecs {
namespace {

// Byte shuffles of eight words, by a mask of them.
using WordShuffles = uint8_t[256][16];

// Two halves of 128 bits from memory.
BF16CODECS_INLINE __m256i load_halves(const uint8_t* low, const uint8_t* high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(low)), load16(high), 1);
}

// a >= b, of unsigned numbers, for which AVX2 has no comparison.
BF16CODECS_INLINE __m256i bytes_at_least(__m256i a, __m256i b) {
  return _mm256_cmpeq_epi8(_mm256_max_epu8(a, b), a);
}
BF16CODECS_INLINE __m256i words_at_least(__m256i a, __m256i b) {
  return _mm256_cmpeq_epi16(_mm256_max_epu16(a, b), a);
}

// An index into a row of 16 bytes that has its highest bit set, and so selects 0, unless a byte's
// high half is that of `row`, whose bytes are 16 times the row's number.
BF16CODECS_INLINE __m256i index_in_row(__m256i bytes, __m256i row) {
  return _mm256_adds_epu8(_mm256_xor_si256(bytes, row), _mm256_set1_epi8(0x70));
}

// The first bytes of 16 words and the first bytes of 16 others in turn, and the second ones.
BF16CODECS_INLINE __m256i first_bytes(__m256i even, __m256i odd) {
  return _mm256_or_si256(_mm256_and_si256(even, _mm256_set1_epi16(255)), _mm256_slli_epi16(odd, 8));
}
BF16CODECS_INLINE __m256i second_bytes(__m256i even, __m256i odd) {
  return _mm256_or_si256(_mm256_srli_epi16(even, 8),
                         _mm256_andnot_si256(_mm256_set1_epi16(255), odd));
}

// The highest bits of 64 bytes.
BF16CODECS_INLINE uint64_t byte_mask(__m256i low, __m256i high) {
  return static_cast<uint32_t>(_mm256_movemask_epi8(low)) |
         static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(high))) << 32;
}

// A mask of the lanes of a group, as movemask gives it: of lanes 0-7, 16-23, 8-15 and 24-31 from
// the lowest bit up. Words belong to lanes in turns of eight.
struct LaneMask {
  static constexpr unsigned kTurnAt[4] = {0, 16, 8, 24};
  static constexpr uint32_t kBefore[4] = {0, 0x000000FF, 0x00FF00FF, 0x00FFFFFF};
  uint32_t bits;

  LaneMask(__m256i even, __m256i odd)
      : bits(static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_packs_epi16(even, odd)))) {}

  // The bytes of the words of all lanes, of those before a turn, and of those after it.
  BF16CODECS_INLINE size_t size() const { return 2 * size_t{popcount(bits)}; }
  BF16CODECS_INLINE size_t size_before(unsigned turn) const {
    return 2 * size_t{popcount(bits & kBefore[turn])};
  }
  BF16CODECS_INLINE size_t size_after(unsigned turn) const {
    return turn == 3 ? 0 : 2 * size_t{popcount(bits & ~kBefore[turn + 1])};
  }
  // The shuffles of two turns, `turn` and the next one.
  BF16CODECS_INLINE __m256i shuffles(const WordShuffles& by_mask, unsigned turn) const {
    return load_halves(by_mask[bits >> kTurnAt[turn] & 255],
                       by_mask[bits >> kTurnAt[turn + 1] & 255]);
  }
};

// The states of 16 lanes.
struct WordStates {
  __m256i low, high;

  BF16CODECS_INLINE void load(const uint32_t x[16]) {
    const __m256i word = _mm256_set1_epi32(0xFFFF);
    const __m256i a = bf16codecs::load(x), b = bf16codecs::load(x + 8);
    low = in_order(_mm256_packus_epi32(_mm256_and_si256(a, word), _mm256_and_si256(b, word)));
    high = in_order(_mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16)));
  }
  BF16CODECS_INLINE void store(uint32_t x[16]) const {
    const __m256i l = in_order(low), h = in_order(high);
    bf16codecs::store(x, _mm256_unpacklo_epi16(l, h));
    bf16codecs::store(x + 8, _mm256_unpackhi_epi16(l, h));
  }

 private:
  // Exchanges the middle quarters, which packs and unpacks of two halves of 128 bits leave
  // exchanged.
  static BF16CODECS_INLINE __m256i in_order(__m256i v) { return _mm256_permute4x64_epi64(v, 0xD8); }
};

// The states of a group.
struct PairsStates {
  WordStates even, odd;

  BF16CODECS_INLINE void load(const uint32_t x[kLanesPerGroup]) { even.load(x), odd.load(x + 16); }
  BF16CODECS_INLINE void store(uint32_t x[kLanesPerGroup]) const {
    even.store(x), odd.store(x + 16);
  }
};

}  // namespace
}  // namespace bf16codecs
