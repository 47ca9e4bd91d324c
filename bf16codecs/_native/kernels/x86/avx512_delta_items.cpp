// The difference mode's classes and numbers for AVX-512 F, BW, DQ and VL
// (docs/format_differences.md, "Numbers"): 32 items of 16 bits at a time, the last ones by masked
// loads and stores. All arithmetic is on words, modulo 2^16, as the format has it for items of 16
// bits. Each group of vector instructions is preceded by the scalar formula that it computes.

#include "kernels/x86/avx512_delta.h"

namespace bf16codecs {
namespace {

BF16CODECS_INLINE __m128i count_of(unsigned bits) {
  return _mm_cvtsi32_si128(static_cast<int>(bits));
}

// Loads and stores of 32 items: all of them, or those of a mask.
struct All {
  static BF16CODECS_INLINE __m512i words(const void* p) { return load(p); }
  static BF16CODECS_INLINE __m256i bytes(const uint8_t* p) { return load32(p); }
  static BF16CODECS_INLINE void store_words(void* p, __m512i v) { store(p, v); }
  static BF16CODECS_INLINE void store_bytes(uint8_t* p, __m256i v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
  }
};

struct Some {
  __mmask32 mask;

  BF16CODECS_INLINE __m512i words(const void* p) const { return _mm512_maskz_loadu_epi16(mask, p); }
  BF16CODECS_INLINE __m256i bytes(const uint8_t* p) const {
    return _mm256_maskz_loadu_epi8(mask, p);
  }
  BF16CODECS_INLINE void store_words(void* p, __m512i v) const {
    _mm512_mask_storeu_epi16(p, mask, v);
  }
  BF16CODECS_INLINE void store_bytes(uint8_t* p, __m256i v) const {
    _mm256_mask_storeu_epi8(p, mask, v);
  }
};

// Calls the function for each 32 of n items, with how to load and store them and the first one's
// index.
template <typename Function>
BF16CODECS_INLINE void for_each_32(size_t n, const Function& function) {
  size_t i = 0;
  for (; i + 32 <= n; i += 32) function(All{}, i);
  if (i < n) function(Some{(1u << (n - i)) - 1}, i);
}

BF16CODECS_INLINE __m512i magnitude(__m512i v) {
  return _mm512_and_si512(v, words_of(0x7FFF));
}
BF16CODECS_INLINE __m512i sign_mask(__m512i v) {
  return _mm512_srai_epi16(v, 15);
}

// order() of the format: all bits but the sign are inverted where the sign is set.
BF16CODECS_INLINE __m512i order(__m512i v, __m512i sign) {
  return _mm512_xor_si512(v, _mm512_srli_epi16(sign, 1));
}
// d < 0 ? -2 d - 1 : 2 d
BF16CODECS_INLINE __m512i zigzag(__m512i d) {
  return _mm512_xor_si512(_mm512_add_epi16(d, d), sign_mask(d));
}
// z % 2 ? -(z + 1) / 2 : z / 2
BF16CODECS_INLINE __m512i unzigzag(__m512i z) {
  const __m512i odd = _mm512_and_si512(z, words_of(1));
  return _mm512_xor_si512(_mm512_srli_epi16(z, 1), _mm512_sub_epi16(_mm512_setzero_si512(), odd));
}
// mask ? -d : d
BF16CODECS_INLINE __m512i negate(__m512i d, __m512i mask) {
  return _mm512_sub_epi16(_mm512_xor_si512(d, mask), mask);
}

// Items to numbers and back, with a shape's constants in registers.
struct Differences {
  __m256i first_near;
  __m128i scale_shift, to_sign;
  __m512i most_octave, raw_mask, sign_bit;

  BF16CODECS_INLINE explicit Differences(const DeltaShape& shape)
      : first_near(_mm256_set1_epi8(static_cast<char>(shape.near))),
        scale_shift(count_of(shape.fraction - 1)),
        to_sign(count_of(15 - shape.near_raw)),
        most_octave(words_of(0xFFFFu >> (shape.fraction - 1))),
        raw_mask(words_of((1u << shape.near_raw) - 1)),
        sign_bit(words_of(1u << shape.near_raw)) {}

  BF16CODECS_INLINE __mmask32 near(__m256i classes) const {
    return _mm256_cmpge_epu8_mask(classes, first_near);
  }

  // max(|b|, (S >> 4) << (fraction - 1)) modulo 2^16. Where the second term has more than 16 bits
  // it is larger than any |b|, and its low 16 bits are the result.
  BF16CODECS_INLINE __m512i anchor(__m512i base, __m512i scales) const {
    const __m512i octaves = _mm512_srli_epi16(scales, 4);
    const __m512i least = _mm512_sll_epi16(octaves, scale_shift);
    const __mmask32 fits = _mm512_cmple_epu16_mask(octaves, most_octave);
    return _mm512_mask_max_epu16(least, fits, least, magnitude(base));
  }

  // order(x) - order(b), or order(b) - order(x) if b is negative
  BF16CODECS_INLINE __m512i subtract(__m512i base, __m512i x) const {
    const __m512i negative = sign_mask(base);
    const __m512i d = _mm512_sub_epi16(order(x, sign_mask(x)), order(base, negative));
    return zigzag(negate(d, negative));
  }
  // Adds the number to order(b), negated if b is negative. The result is order(x), whose own
  // inverse gives x.
  BF16CODECS_INLINE __m512i add(__m512i base, __m512i number) const {
    const __m512i negative = sign_mask(base);
    const __m512i d = negate(unzigzag(number), negative);
    const __m512i x = _mm512_add_epi16(order(base, negative), d);
    return order(x, sign_mask(x));
  }

  // y = zigzag(|x| - anchor);  y >> r << (r + 1) | sign << r | y & (2^r - 1), but 65535 if that is
  // more. y plus y without its r low bits is the number with a 0 in the place of the sign. It
  // overflows where y >= 2^15: there the sign mask of y makes it 65535.
  BF16CODECS_INLINE __m512i subtract_near(__m512i base, __m512i x, __m512i scales) const {
    const __m512i y = zigzag(_mm512_sub_epi16(magnitude(x), anchor(base, scales)));
    const __m512i parted = _mm512_add_epi16(y, _mm512_andnot_si512(raw_mask, y));
    const __m512i signs = _mm512_srl_epi16(_mm512_xor_si512(base, x), to_sign);
    return _mm512_or_si512(_mm512_ternarylogic_epi32(parted, signs, sign_bit, 0xF8), sign_mask(y));
  }
  // y = number >> (r + 1) << r | number & (2^r - 1): 0xCA takes number where the mask is set,
  // otherwise number >> 1. Bit r of the number, moved to bit 15, is whether x and b have different
  // signs.
  BF16CODECS_INLINE __m512i add_near(__m512i base, __m512i number, __m512i scales) const {
    const __m512i y =
        _mm512_ternarylogic_epi32(raw_mask, number, _mm512_srli_epi16(number, 1), 0xCA);
    const __m512i x = _mm512_add_epi16(anchor(base, scales), unzigzag(y));
    const __m512i signs = _mm512_xor_si512(base, _mm512_sll_epi16(number, to_sign));
    return _mm512_ternarylogic_epi32(words_of(0x7FFF), x, signs, 0xCA);
  }
};

}  // namespace

// place = clamp((S - 16 e + origin) >> step, 0, places - 1), in unsigned words that saturate. A sum
// below 0 becomes 0, which is place 0 as well. S + origin above 65535 becomes 65535, and less 16 e,
// at most 4080, it is still past the last place, 63 << 4 at most.
void avx512_delta_classify16(const DeltaShape& shape, const uint8_t* base, const uint16_t* scales,
                             size_t n, uint8_t* classes) {
  const __m512i low = _mm512_cvtepu8_epi16(load32(shape.class_of));
  const __m512i high = _mm512_cvtepu8_epi16(load32(shape.class_of + 32));
  const __m512i more = words_of(shape.origin > 0 ? static_cast<unsigned>(shape.origin) : 0);
  const __m512i less = words_of(shape.origin < 0 ? static_cast<unsigned>(-shape.origin) : 0);
  const __m512i last = words_of(shape.places - 1);
  const __m128i fraction = count_of(shape.fraction - 1), step = count_of(shape.shift);
  for_each_32(n, [&](const auto& items, size_t i) {
    const __m512i exponents = _mm512_srl_epi16(magnitude(items.words(base + 2 * i)), fraction);
    __m512i t = _mm512_adds_epu16(items.words(scales + i), more);
    t = _mm512_subs_epu16(t, _mm512_slli_epi16(exponents, 4));
    t = _mm512_subs_epu16(t, less);
    const __m512i place = _mm512_min_epu16(_mm512_srl_epi16(t, step), last);
    items.store_bytes(classes + i,
                      _mm512_cvtepi16_epi8(_mm512_permutex2var_epi16(low, place, high)));
  });
}

// The branch on near classes is predicted well: a shape has none of them, or nearly any 32 items
// have some.
void avx512_delta_subtract16(const DeltaShape& shape, const uint8_t* base, const uint8_t* items,
                             const uint16_t* scales, const uint8_t* classes, size_t n,
                             uint16_t* numbers) {
  const Differences differences(shape);
  for_each_32(n, [&](const auto& some, size_t i) {
    const __m512i b = some.words(base + 2 * i), x = some.words(items + 2 * i);
    __m512i number = differences.subtract(b, x);
    const __mmask32 near = differences.near(some.bytes(classes + i));
    if (near != 0) {
      const __m512i signed_one = differences.subtract_near(b, x, some.words(scales + i));
      number = _mm512_mask_mov_epi16(number, near, signed_one);
    }
    some.store_words(numbers + i, number);
  });
}

void avx512_delta_add16(const DeltaShape& shape, const uint8_t* base, const uint16_t* numbers,
                        const uint16_t* scales, const uint8_t* classes, size_t n, uint8_t* items) {
  const Differences differences(shape);
  for_each_32(n, [&](const auto& some, size_t i) {
    const __m512i b = some.words(base + 2 * i), number = some.words(numbers + i);
    __m512i x = differences.add(b, number);
    const __mmask32 near = differences.near(some.bytes(classes + i));
    if (near != 0) {
      const __m512i signed_one = differences.add_near(b, number, some.words(scales + i));
      x = _mm512_mask_mov_epi16(x, near, signed_one);
    }
    some.store_words(items + 2 * i, x);
  });
}

}  // namespace bf16codecs
