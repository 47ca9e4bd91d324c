// The loops of grids, compiled for AVX-512; and items of 16 bits by runs of one scale: the products
// of a run are looked up in a register of 32 words, which takes a sixth of the time of multiplying.

#include "kernels/x86/avx512.h"

#include "kernels/quantized_search.h"

namespace bf16codecs {
namespace {

// Rounds 16 products, as quantized_loops.h does.
BF16CODECS_INLINE __m256i words_of(__m512 products, Precision precision) {
  if (precision == Precision::binary16)
    return _mm512_cvtps_ph(products, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  if (precision == Precision::binary16_bfloat16) {
    products =
        _mm512_cvtph_ps(_mm512_cvtps_ph(products, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  const __m512i bits = _mm512_castps_si512(products);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i more = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(bits, more), 16));
}

BF16CODECS_INLINE __m512i joined(__m256i low, __m256i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// The words of n <= 32 items.
BF16CODECS_INLINE __m512i load_symbols(const uint8_t* symbols, __mmask32 mask) {
  return _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(mask, symbols));
}

BF16CODECS_INLINE __mmask32 first(size_t n) {
  return n < 32 ? (1u << n) - 1 : 0xFFFFFFFF;
}

// Of codes without low bits: a permutation takes the lowest five bits of a symbol.
class Products {
 public:
  Products(const Levels& levels, Precision precision) : precision_(precision) {
    alignas(64) float numbers[kMostLevels];
    for (unsigned s = 0; s < kMostLevels; ++s) {
      numbers[s] =
          levels.family == Family::integers ? Integers(levels).level(s, 0) : levels.table[s];
    }
    low_ = _mm512_load_ps(numbers);
    high_ = _mm512_load_ps(numbers + 16);
  }

  BF16CODECS_INLINE void start(float scale) {
    const __m512 s = _mm512_set1_ps(scale);
    words_ = joined(words_of(_mm512_mul_ps(low_, s), precision_),
                    words_of(_mm512_mul_ps(high_, s), precision_));
  }
  BF16CODECS_INLINE __m512i items(const uint8_t* symbols, const uint8_t*, __mmask32 mask) const {
    return _mm512_permutexvar_epi16(load_symbols(symbols, mask), words_);
  }

 private:
  Precision precision_;
  __m512 low_, high_;
  __m512i words_;
};

// Of floats with three bits of a mantissa, as bfloat16: the products of the mantissas are rounded
// in the first octave. In others, the exponent is larger, and nothing else.
class Float8Products {
 public:
  Float8Products(const Levels& levels, unsigned from)
      : from_(_mm_cvtsi32_si128(static_cast<int>(from))) {
    alignas(64) float numbers[16];
    const Floats floats(levels);
    for (unsigned p = 0; p < 8; ++p) {
      numbers[p] = floats.level(0, p);
      numbers[8 + p] = floats.level(1, p);
    }
    levels_ = _mm512_load_ps(numbers);
  }

  BF16CODECS_INLINE void start(float scale) {
    const __m256i words =
        words_of(_mm512_mul_ps(levels_, _mm512_set1_ps(scale)), Precision::bfloat16);
    words_ = joined(words, words);
  }
  BF16CODECS_INLINE __m512i items(const uint8_t* symbols, const uint8_t* packed,
                                  __mmask32 mask) const {
    const __m512i exponent = _mm512_and_si512(load_symbols(symbols, mask), _mm512_set1_epi16(31));
    const __m512i low = _mm512_srl_epi16(load_symbols(packed, mask), from_);
    // The lowest four bits: the mantissa, and whether there is an exponent.
    const __mmask32 is_normal = _mm512_test_epi16_mask(exponent, exponent);
    const __m512i mantissa = _mm512_and_si512(low, _mm512_set1_epi16(7));
    const __m512i index = _mm512_or_si512(mantissa, _mm512_maskz_set1_epi16(is_normal, 8));
    const __m512i octaves = _mm512_subs_epu16(exponent, _mm512_set1_epi16(1));
    const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(low, _mm512_set1_epi16(8)), 12);
    const __m512i magnitude =
        _mm512_add_epi16(_mm512_permutexvar_epi16(index, words_), _mm512_slli_epi16(octaves, 7));
    return _mm512_xor_si512(magnitude, sign);
  }

 private:
  __m128i from_;
  __m512 levels_;
  __m512i words_;
};

template <typename Of>
void multiply_by_runs(Of of, const uint8_t* symbols, const uint8_t* packed, const ScaleRun* runs,
                      size_t n_runs, uint8_t* items) {
  for (size_t r = 0; r < n_runs; ++r) {
    const size_t length = runs[r].length;
    of.start(runs[r].scale);
    for (size_t i = 0; i < length; i += 32) {
      const __mmask32 mask = first(length - i);
      _mm512_mask_storeu_epi16(items + 2 * i, mask, of.items(symbols + i, packed + i, mask));
    }
    symbols += length, packed += length, items += 2 * length;
  }
}

bool takes_runs(const Levels& levels, Precision precision, Container container) {
  const bool is_float8 = levels.family == Family::floats && levels.low_bits == 4;
  return container != Container::float32 &&
         (levels.low_bits == 0 || (is_float8 && precision == Precision::bfloat16));
}

void multiply_runs(const Levels& levels, Precision precision, Container, const uint8_t* symbols,
                   const LowBits low[], const ScaleRun* runs, size_t n_runs, uint8_t* items) {
  if (levels.low_bits == 0) {
    multiply_by_runs(Products(levels, precision), symbols, symbols, runs, n_runs, items);
  } else {
    multiply_by_runs(Float8Products(levels, low[0].from), symbols, low[0].packed, runs, n_runs,
                     items);
  }
}

}  // namespace

const QuantizedKernels kAvx512QuantizedKernels =
    BF16CODECS_QUANTIZED_KERNELS(takes_runs, multiply_runs);

}  // namespace bf16codecs
