// The difference mode's kernels for AVX-512 F, BW, DQ and VL. Each group of vector instructions is
// preceded by the scalar formula that it computes.

#include "kernels/x86/avx512_delta.h"

namespace bf16codecs {
namespace {

constexpr __mmask32 kOddWords = 0xAAAAAAAA;

// Two registers of states: lanes 0-15 and 16-31 of a group. Words of both are even and odd ones of
// one register, in the order of the items.
struct Group {
  __m512i even, odd;

  BF16CODECS_INLINE __m512i low_words() const {
    return _mm512_mask_blend_epi16(kOddWords, even, _mm512_slli_epi32(odd, 16));
  }
};

BF16CODECS_INLINE __m512i even_words(__m512i v) {
  return _mm512_and_si512(v, _mm512_set1_epi32(0xFFFF));
}
BF16CODECS_INLINE __m512i odd_words(__m512i v) {
  return _mm512_srli_epi32(v, 16);
}

// Decodes 32 numbers.
template <unsigned kClassBits>
BF16CODECS_INLINE __m512i decode_group(const Search<kClassBits>& t, const uint8_t* classes,
                                       Group& x, __mmask32& escapes) {
  const __m512i c = _mm512_cvtepu8_epi16(load32(classes));
  const Found found = find(t, c, x.low_words());
  // r = raw[c];  q = entry == escape ? 0 : n[entry] + r
  const __m512i r = _mm512_permutexvar_epi16(c, t.raw);
  const __m512i bits = _mm512_permutexvar_epi16(found.entries, t.bits);
  const __m512i q = _mm512_max_epi16(_mm512_add_epi16(bits, r), _mm512_setzero_si512());
  const __m512i base = _mm512_sllv_epi16(_mm512_permutexvar_epi16(found.entries, t.base), r);
  escapes = _mm512_movepi16_mask(bits);

  // x = f (x >> 12) + rank
  const __m512i rank = _mm512_xor_si512(found.last, words_of(0xFFFF));
  x.even = _mm512_add_epi32(_mm512_mullo_epi32(_mm512_srli_epi32(x.even, 12), even_words(found.f)),
                            even_words(rank));
  x.odd = _mm512_add_epi32(_mm512_mullo_epi32(_mm512_srli_epi32(x.odd, 12), odd_words(found.f)),
                           odd_words(rank));

  // number = (base << r) + (x & (2^q - 1));  x >>= q
  const __m512i above = _mm512_sllv_epi16(words_of(0xFFFF), q);
  const __m512i numbers = _mm512_ternarylogic_epi32(base, above, x.low_words(), 0xF2);
  x.even = _mm512_srlv_epi32(x.even, even_words(q));
  x.odd = _mm512_srlv_epi32(x.odd, odd_words(q));
  return numbers;
}

// if (x < 2^16) x = x << 16 | next word, lane by lane.
BF16CODECS_INLINE void renormalize(__m512i& x, const uint8_t*& words) {
  const __mmask16 low = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(kLowestState));
  const __m512i next = _mm512_mask_expand_epi32(x, low, _mm512_cvtepu16_epi32(load32(words)));
  words += 2 * popcount(low);
  x = _mm512_or_si512(_mm512_maskz_slli_epi32(low, x, 16), next);
}

template <unsigned kGroups, unsigned kClassBits>
void decode_steps(DeltaDecoder& d, const DeltaTables& tables, const uint8_t* classes, size_t steps,
                  uint16_t* numbers, uint32_t* escapes) {
  const Search<kClassBits> search(tables);
  Group x[kGroups];
  for (unsigned g = 0; g < kGroups; ++g) x[g] = {load(d.x + 32 * g), load(d.x + 32 * g + 16)};
  const uint8_t* words = d.words;
  for (size_t step = 0; step < steps; step += kGroups) {
    BF16CODECS_UNROLL
    for (unsigned g = 0; g < kGroups; ++g) {
      __mmask32 escaped;
      store(numbers + kDeltaStep * g,
            decode_group(search, classes + kDeltaStep * g, x[g], escaped));
      escapes[step + g] = escaped;
    }
    BF16CODECS_UNROLL
    for (unsigned g = 0; g < kGroups; ++g) {
      renormalize(x[g].even, words);
      renormalize(x[g].odd, words);
    }
    classes += kDeltaStep * kGroups, numbers += kDeltaStep * kGroups;
  }
  for (unsigned g = 0; g < kGroups; ++g) {
    store(d.x + 32 * g, x[g].even), store(d.x + 32 * g + 16, x[g].odd);
  }
  d.words = words;
}

template <unsigned kClassBits>
BF16CODECS_INLINE auto choose_decode(unsigned groups) {
  return groups == 1   ? decode_steps<1, kClassBits>
         : groups == 2 ? decode_steps<2, kClassBits>
                       : decode_steps<4, kClassBits>;
}

void decode(DeltaDecoder& d, const DeltaTables& tables, const uint8_t* classes, size_t steps,
            uint16_t* numbers, uint32_t* escapes) {
  const auto kernel = tables.classes <= 8 ? choose_decode<3>(d.groups) : choose_decode<4>(d.groups);
  kernel(d, tables, classes, steps, numbers, escapes);
}

void classify16(const DeltaShape& shape, const uint8_t* base, const uint16_t* scales, size_t n,
                uint8_t* classes) {
  kScalarDeltaKernels.classify16(shape, base, scales, n, classes);
}

void subtract16(const DeltaShape& shape, const uint8_t* base, const uint8_t* items,
                const uint16_t* scales, const uint8_t* classes, size_t n, uint16_t* numbers) {
  kScalarDeltaKernels.subtract16(shape, base, items, scales, classes, n, numbers);
}

void add16(const DeltaShape& shape, const uint8_t* base, const uint16_t* numbers,
           const uint16_t* scales, const uint8_t* classes, size_t n, uint8_t* items) {
  kScalarDeltaKernels.add16(shape, base, numbers, scales, classes, n, items);
}

void encode(DeltaEncoder& e, const DeltaTables& tables, const uint8_t* classes,
            const uint16_t* numbers, size_t steps, uint32_t* escapes) {
  kScalarDeltaKernels.encode(e, tables, classes, numbers, steps, escapes);
}

}  // namespace

const DeltaKernels kAvx512DeltaKernels = {
    .classify16 = classify16,
    .subtract16 = subtract16,
    .add16 = add16,
    .decode = decode,
    .reads_slots = false,
    .encode = encode,
};

}  // namespace bf16codecs
