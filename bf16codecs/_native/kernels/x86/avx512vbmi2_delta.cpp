// The difference mode's decoder for AVX-512 with VBMI and VBMI2 (docs/format_differences.md,
// "Coding").
//
// As in avx512vbmi2_tiles.cpp, the states of a group are planes: the low and the high words of its
// 32 lanes in two registers, lane l at word l. VBMI2 shifts words of both as if they were one, and
// expands words. So everything is in the order of the lanes until numbers and escapes are permuted
// to the order of the items. Entries are searched for as avx512_delta.h describes.
//
// Each group of vector instructions is preceded by the scalar formula that it computes.

#include "kernels/x86/avx512_delta.h"

#include "kernels/delta_tables.h"
#include "kernels/groups.h"
#include "kernels/x86/avx512vbmi2_planes.h"

namespace bf16codecs {
namespace {

struct Index {
  // A double shift appends the sign of d in one instruction.
  static BF16CODECS_INLINE __m512i append(__m512i i, __m512i d) {
    return _mm512_shldi_epi16(i, d, 1);
  }
};

// Loads 32 classes, as words in the order of the lanes: the even items', then the odd ones'. The
// mask makes the high bytes 0.
BF16CODECS_INLINE __m512i load_classes(const uint8_t* classes) {
  alignas(64) static constexpr uint8_t kOrder[64] = {
      0,  0, 2,  0, 4,  0, 6,  0, 8,  0, 10, 0, 12, 0, 14, 0,  //
      16, 0, 18, 0, 20, 0, 22, 0, 24, 0, 26, 0, 28, 0, 30, 0,  //
      1,  0, 3,  0, 5,  0, 7,  0, 9,  0, 11, 0, 13, 0, 15, 0,  //
      17, 0, 19, 0, 21, 0, 23, 0, 25, 0, 27, 0, 29, 0, 31, 0};
  return _mm512_maskz_permutexvar_epi8(0x5555555555555555, load(kOrder),
                                       _mm512_castsi256_si512(load32(classes)));
}

// Permutes words from the order of the lanes to that of the items.
BF16CODECS_INLINE __m512i in_order(__m512i lanes) {
  alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(load(kOrder), lanes);
}

// Decodes 32 numbers in classes c, whose entries were found.
template <unsigned kClassBits>
BF16CODECS_INLINE __m512i decode_group(const Search<kClassBits>& t, __m512i c, const Found& found,
                                       Planes& x, const uint8_t*& words, uint32_t& escapes) {
  // r = raw[c];  q = entry == escape ? 0 : n[entry] + r
  const __m512i r = _mm512_permutexvar_epi16(c, t.raw);
  const __m512i bits = _mm512_permutexvar_epi16(found.entries, t.bits);
  const __m512i q = _mm512_max_epi16(_mm512_add_epi16(bits, r), _mm512_setzero_si512());
  const __m512i base = _mm512_sllv_epi16(_mm512_permutexvar_epi16(found.entries, t.base), r);
  escapes = _mm512_movepi16_mask(in_order(bits));

  // x = f (x >> 12) + rank, of words:
  //   f (x >> 12) = 16 f x.high + f (x.low >> 12)
  // 16 f is below 2^16. The second product is at most 15 x 4095; with rank < f it fits in a word,
  // `more`. The low word of the sum has overflowed if it is below `more`, and then carries 1.
  const __m512i f16 = _mm512_slli_epi16(found.f, 4);
  const __m512i more =
      _mm512_add_epi16(_mm512_mullo_epi16(found.f, _mm512_srli_epi16(x.low, 12)), found.rank);
  const __m512i low = _mm512_add_epi16(_mm512_mullo_epi16(f16, x.high), more);
  const __m512i carry = _mm512_min_epu16(_mm512_subs_epu16(more, low), words_of(1));
  const __m512i high = _mm512_add_epi16(_mm512_mulhi_epu16(f16, x.high), carry);

  // number = (base << r) + (x & (2^q - 1));  x >>= q;  if (x < 2^16) x = x << 16 | next word. q is
  // at most 14: x >> q is below 2^16 if the high word has no bit from bit q on. The new high word
  // then is the low one, whose place the next word takes.
  const __m512i above = _mm512_sllv_epi16(words_of(0xFFFF), q);
  const __m512i numbers = _mm512_ternarylogic_epi32(base, above, low, 0xF2);
  const __mmask32 is_low = _mm512_testn_epi16_mask(high, above);
  x.low = _mm512_shrdv_epi16(low, high, q);
  x.high = _mm512_mask_mov_epi16(_mm512_srlv_epi16(high, q), is_low, x.low);
  x.low = _mm512_mask_expand_epi16(x.low, is_low, load_early(words));
  words += 2 * popcount(is_low);
  return in_order(numbers);
}

template <unsigned kGroups, unsigned kClassBits>
void decode_steps(DeltaDecoder& d, const DeltaTables& tables, const uint8_t* classes, size_t steps,
                  uint16_t* numbers, uint32_t* escapes) {
  const Search<kClassBits> search(tables);
  Planes x[kGroups];
  for (unsigned g = 0; g < kGroups; ++g) x[g] = load_planes(d.x + 32 * g);
  const uint8_t* words = d.words;
  for (size_t step = 0; step < steps; step += kGroups) {
    __m512i c[kGroups], slots[kGroups];
    Found found[kGroups];
    BF16CODECS_UNROLL
    for (unsigned g = 0; g < kGroups; ++g) {
      c[g] = load_classes(classes + kDeltaStep * g), slots[g] = x[g].low;
    }
    find<Index, kGroups>(search, c, slots, found);
    BF16CODECS_UNROLL
    for (unsigned g = 0; g < kGroups; ++g) {
      store(numbers + kDeltaStep * g,
            decode_group(search, c[g], found[g], x[g], words, escapes[step + g]));
    }
    classes += kDeltaStep * kGroups, numbers += kDeltaStep * kGroups;
  }
  for (unsigned g = 0; g < kGroups; ++g) store_planes(d.x + 32 * g, x[g]);
  d.words = words;
}

void decode(DeltaDecoder& d, const DeltaTables& tables, const uint8_t* classes, size_t steps,
            uint16_t* numbers, uint32_t* escapes) {
  with_groups(d.groups, [&](auto groups) {
    const auto kernel = tables.classes <= 8 ? decode_steps<groups(), 3> : decode_steps<groups(), 4>;
    kernel(d, tables, classes, steps, numbers, escapes);
  });
}

}  // namespace

const DeltaKernels kAvx512Vbmi2DeltaKernels = {
    .classify16 = avx512_delta_classify16,
    .subtract16 = avx512_delta_subtract16,
    .add16 = avx512_delta_add16,
    .decode = decode,
    .prepare = spread_search,
    .class_slots = 0,
    .encode = avx512_delta_encode,
};

}  // namespace bf16codecs
