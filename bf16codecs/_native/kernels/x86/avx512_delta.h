#pragma once

// How the difference mode's decoders for AVX-512 find entries (docs/format_differences.md,
// "Coding"): by a binary search over the starts of the item's class, for 32 lanes at a time, in
// words.
//
// An index begins as the class c, and each of four comparisons appends a bit to it, so that it ends
// as 16 c + j, with j the entry. Each comparison has a table of its own, by the index so far:
//
//   comparison   1st       2nd          3rd               4th
//   index        c         2 c + ...    4 c + ...         8 c + ...
//   start of     8         4, 12        2, 6, 10, 14      1, 3, 5, ... 15
//   words        16        32           64                128
//
// All of them lie in registers, where eight classes or fewer need half of the last two. A permute
// looks at the low bits of an index, 5 for one register and 6 for two; the bits above do not count.
//
// Each file that includes this has a copy of its own, built for its instruction set, and defines
// how a bit is appended:
//
//   struct Index {
//     // 2 i + 1 where d is negative, otherwise 2 i.
//     static __m512i append(__m512i i, __m512i d);
//   };

#include "kernels/x86/avx512.h"

namespace bf16codecs {

void avx512_delta_classify16(const DeltaShape& shape, const uint8_t* base, const uint16_t* scales,
                             size_t n, uint8_t* classes);
void avx512_delta_subtract16(const DeltaShape& shape, const uint8_t* base, const uint8_t* items,
                             const uint16_t* scales, const uint8_t* classes, size_t n,
                             uint16_t* numbers);
void avx512_delta_add16(const DeltaShape& shape, const uint8_t* base, const uint16_t* numbers,
                        const uint16_t* scales, const uint8_t* classes, size_t n, uint8_t* items);
void avx512_delta_encode(DeltaEncoder& encoder, const DeltaTables& tables, const uint8_t* classes,
                         const uint16_t* numbers, size_t steps, uint32_t* escapes);

namespace {

BF16CODECS_INLINE __m512i words_of(unsigned v) {
  return _mm512_set1_epi16(static_cast<int16_t>(v));
}

// Loads 16 words twice, so that the fifth bit of an index does not count either.
BF16CODECS_INLINE __m512i load_twice(const uint16_t table[16]) {
  return _mm512_broadcast_i64x4(load32(reinterpret_cast<const uint8_t*>(table)));
}

// r of each class, in words.
BF16CODECS_INLINE __m512i load_raw(const DeltaTables& t) {
  const __m128i raw = _mm_load_si128(reinterpret_cast<const __m128i*>(t.raw));
  return _mm512_cvtepu8_epi16(_mm256_broadcastsi128_si256(raw));
}

// By entry: n, except that the escape has a number that makes n + r negative whatever r is. So q is
// max(n + r, 0) for all entries, and the sign shows escapes.
alignas(32) constexpr uint16_t kEntryBits[kDeltaEntries] = {0, 0, 0, 0, 0, 0, 0, 0,
                                                            1, 1, 1, 1, 4, 5, 6, 0x8000};
alignas(32) constexpr uint16_t kEntryBase[kDeltaEntries] = {0, 1,  2,  3,  4,  5,  6,  7,
                                                            8, 10, 12, 14, 16, 32, 64, 0};

// The tables of up to 2^kClassBits classes, in registers.
template <unsigned kClassBits>
struct Search {
  static constexpr unsigned kLast = kClassBits == 3 ? 2 : 4;  // registers
  __m512i of1, of2, of4[kLast / 2], of8[kLast], raw, bits, base;

  BF16CODECS_INLINE explicit Search(const DeltaTables& t)
      : of1(load_twice(t.search1)),
        of2(load(t.search2)),
        raw(load_raw(t)),
        bits(load_twice(kEntryBits)),
        base(load_twice(kEntryBase)) {
    for (unsigned i = 0; i < kLast / 2; ++i) of4[i] = load(t.search4 + 32 * i);
    for (unsigned i = 0; i < kLast; ++i) of8[i] = load(t.search8 + 32 * i);
  }

  // Look up in search4 and search8. The latter has four registers for 16 classes; `upper` tells the
  // lanes whose class is 8 or more.
  BF16CODECS_INLINE __m512i look_up4(__m512i i) const {
    if constexpr (kClassBits == 3) return _mm512_permutexvar_epi16(i, of4[0]);
    return _mm512_permutex2var_epi16(of4[0], i, of4[kLast / 2 - 1]);
  }
  BF16CODECS_INLINE __m512i look_up8(__m512i i, __mmask32 upper) const {
    const __m512i low = _mm512_permutex2var_epi16(of8[0], i, of8[1]);
    if constexpr (kClassBits == 3) return low;
    return _mm512_mask_blend_epi16(upper, low,
                                   _mm512_permutex2var_epi16(of8[kLast - 2], i, of8[kLast - 1]));
  }
};

// The results for 32 items: entries, with the class in the bits above; frequencies; and ranks.
struct Found {
  __m512i entries, f, rank;
};

// The search of one group. d = start + ~a is start - a - 1: as a word it is negative where start <=
// a, otherwise 0 ... 4095. As unsigned numbers, the largest d that was met, of those that are
// negative, is that of the entry found, and the smallest, of the others, that of the next entry.
// Their difference is f, which is faster than a look-up, and ~last is a - start, the rank. They
// begin as those of entry 0, whose start is 0, and of the end of the last entry, 4096.
template <typename Index>
struct GroupSearch {
  __m512i not_a, last, next, i;

  BF16CODECS_INLINE void begin(__m512i classes, __m512i slots) {
    // ~(slots & 4095)
    not_a = _mm512_ternarylogic_epi32(slots, slots, words_of(4095), 0x5F);
    last = not_a;
    next = _mm512_add_epi16(not_a, words_of(4096));
    i = classes;
  }
  BF16CODECS_INLINE void descend(__m512i starts) {
    const __m512i d = _mm512_add_epi16(starts, not_a);
    last = _mm512_max_epu16(last, d);
    next = _mm512_min_epu16(next, d);
    i = Index::append(i, d);
  }
  BF16CODECS_INLINE Found found() const {
    return {i, _mm512_sub_epi16(next, last), _mm512_xor_si512(last, words_of(0xFFFF))};
  }
};

// Finds the last entries whose starts are not above a, of all groups in turns: a processor does not
// look far enough ahead to begin with one group before the other ends. With VBMI2, four groups
// decode at 12.1 GB/s instead of 9.1.
template <typename Index, unsigned kGroups, unsigned kClassBits>
BF16CODECS_INLINE void find(const Search<kClassBits>& t, const __m512i classes[kGroups],
                            const __m512i slots[kGroups], Found found[kGroups]) {
  GroupSearch<Index> at[kGroups];
  BF16CODECS_UNROLL
  for (unsigned g = 0; g < kGroups; ++g) at[g].begin(classes[g], slots[g]);
  BF16CODECS_UNROLL
  for (unsigned g = 0; g < kGroups; ++g) at[g].descend(_mm512_permutexvar_epi16(at[g].i, t.of1));
  BF16CODECS_UNROLL
  for (unsigned g = 0; g < kGroups; ++g) at[g].descend(_mm512_permutexvar_epi16(at[g].i, t.of2));
  BF16CODECS_UNROLL
  for (unsigned g = 0; g < kGroups; ++g) at[g].descend(t.look_up4(at[g].i));
  BF16CODECS_UNROLL
  for (unsigned g = 0; g < kGroups; ++g) {
    at[g].descend(t.look_up8(at[g].i, _mm512_test_epi16_mask(classes[g], words_of(8))));
  }
  BF16CODECS_UNROLL
  for (unsigned g = 0; g < kGroups; ++g) found[g] = at[g].found();
}

}  // namespace
}  // namespace bf16codecs
