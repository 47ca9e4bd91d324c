#pragma once

// The kernels of grids for AVX-512: items of 16 bits by runs of one scale, 32 at a time. Of codes
// without low bits, and of floats as bfloat16, the products of a run's scale are looked up in
// registers. All others are multiplied. Each file that includes this has a copy of its own: with
// BF16CODECS_AVX512_BF16, numbers are rounded to bfloat16 by the instruction for it.

#include "kernels/x86/avx512.h"
#include "kernels/x86/quantized.h"

namespace bf16codecs {
namespace {

// The numbers of 32 items: those at even places, and those at odd ones.
struct Numbers {
  __m512 even, odd;
};

constexpr __mmask32 kOddWords = 0xAAAAAAAA;
constexpr int kToNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

#if defined(BF16CODECS_AVX512_BF16)

// The instruction rounds to nearest, ties to even, as everywhere else. It takes subnormal numbers
// for zeros, but the format allows no such products. This takes two instructions instead of eight.
BF16CODECS_INLINE __m512i bfloat16_words(const Numbers& x) {
  alignas(64) static constexpr int16_t kInTurns[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                       21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                       11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i words = __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(x.odd, x.even));
  return _mm512_permutexvar_epi16(_mm512_load_si512(kInTurns), words);
}

#else

// Adds what rounds the upper half: 0x7FFF, and 1 if that half is odd.
BF16CODECS_INLINE __m512i with_half(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  return _mm512_add_epi32(
      bits, _mm512_mask_blend_epi32(is_odd, _mm512_set1_epi32(0x7FFF), _mm512_set1_epi32(0x8000)));
}

BF16CODECS_INLINE __m512i bfloat16_words(const Numbers& x) {
  return _mm512_mask_blend_epi16(kOddWords, _mm512_srli_epi32(with_half(x.even), 16),
                                 with_half(x.odd));
}

#endif

// Rounds products, as quantized_loops.h does.
template <Precision kPrecision>
BF16CODECS_INLINE __m512i words_of(Numbers x) {
  if constexpr (kPrecision != Precision::bfloat16) {
    const __m256i even = _mm512_cvtps_ph(x.even, kToNearest);
    const __m256i odd = _mm512_cvtps_ph(x.odd, kToNearest);
    if constexpr (kPrecision == Precision::binary16) {
      return _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                             _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
    }
    x = {_mm512_cvtph_ps(even), _mm512_cvtph_ps(odd)};
  }
  return bfloat16_words(x);
}

BF16CODECS_INLINE Numbers multiply(const Numbers& x, const Numbers& y) {
  return {_mm512_mul_ps(x.even, y.even), _mm512_mul_ps(x.odd, y.odd)};
}

BF16CODECS_INLINE Numbers repeated(float x) {
  return {_mm512_set1_ps(x), _mm512_set1_ps(x)};
}

// Of n <= 32 items.
BF16CODECS_INLINE __mmask32 first(size_t n) {
  return n < 32 ? (1u << n) - 1 : 0xFFFFFFFF;
}

// Bytes as words.
BF16CODECS_INLINE __m512i load_words(const uint8_t* bytes, __mmask32 mask) {
  return _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(mask, bytes));
}

// Numbers in the order of the items.
BF16CODECS_INLINE Numbers load_numbers(const float* numbers, __mmask32 mask) {
  const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), numbers);
  const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), numbers + 16);
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
  return {_mm512_permutex2var_ps(low, even, high), _mm512_permutex2var_ps(low, odd, high)};
}

// The low bits of codes, moved to end below a bit, in `kParts` parts.
template <unsigned kParts>
class LowWords {
 public:
  LowWords(const LowBits low[], unsigned end) {
    for (unsigned p = 0; p < kParts; ++p) {
      const LowPlace place(low[p], end);
      packed_[p] = low[p].packed;
      shift_[p] = _mm_cvtsi32_si128(place.shift);
      mask_[p] = _mm512_set1_epi16(static_cast<int16_t>(place.mask));
      end -= low[p].bits;
    }
  }

  // Adds those of the items from number `at` on to words.
  BF16CODECS_INLINE __m512i with(__m512i words, size_t at, __mmask32 mask) const {
    for (unsigned p = 0; p < kParts; ++p) {
      const __m512i low = _mm512_sll_epi16(load_words(packed_[p] + at, mask), shift_[p]);
      words = _mm512_ternarylogic_epi32(low, mask_[p], words, 0xEA);
    }
    return words;
  }

 private:
  const uint8_t* packed_[kParts + 1] = {};
  __m128i shift_[kParts + 1];
  __m512i mask_[kParts + 1];
};

// --- levels of 32 codes

struct SymbolNumbers {
  __m512 low, high;

  SymbolNumbers(const Levels& levels, const LowBits[]) {
    const SymbolLevels numbers(levels);
    low = _mm512_load_ps(numbers.of);
    high = _mm512_load_ps(numbers.of + 16);
  }

  // A permutation takes the lowest five bits of a symbol.
  BF16CODECS_INLINE Numbers at(const uint8_t* symbols, size_t at, __mmask32 mask) const {
    const __m512i words = load_words(symbols + at, mask);
    return {_mm512_permutex2var_ps(low, words, high),
            _mm512_permutex2var_ps(low, _mm512_srli_epi32(words, 16), high)};
  }
};

template <unsigned kParts>
class IntegerNumbers {
 public:
  IntegerNumbers(const Levels& levels, const LowBits low[])
      : low_(low, IntegerWords::kEnd),
        magic_(_mm512_set1_epi32(static_cast<int>(IntegerWords(levels).magic))),
        zero_(_mm512_set1_ps(IntegerWords(levels).zero)) {}

  BF16CODECS_INLINE Numbers at(const uint8_t* symbols, size_t at, __mmask32 mask) const {
    const __m512i symbol = _mm512_slli_epi16(load_words(symbols + at, mask), IntegerWords::kEnd);
    const __m512i words = low_.with(symbol, at, mask);
    // The odd words of `magic_` are the even items' exponents.
    const __m512i even = _mm512_mask_blend_epi16(kOddWords, words, magic_);
    const __m512i odd = _mm512_or_si512(_mm512_srli_epi32(words, 16), magic_);
    Numbers levels{_mm512_sub_ps(_mm512_castsi512_ps(even), zero_),
                   _mm512_sub_ps(_mm512_castsi512_ps(odd), zero_)};
    if (_mm512_mask_testn_epi16_mask(mask, words, words) != 0) [[unlikely]] {
      levels.even = with_negative_zeros(levels.even, even);
      levels.odd = with_negative_zeros(levels.odd, odd);
    }
    return levels;
  }

 private:
  BF16CODECS_INLINE __m512 with_negative_zeros(__m512 levels, __m512i codes) const {
    return _mm512_mask_mov_ps(levels, _mm512_cmpeq_epi32_mask(codes, magic_),
                              _mm512_set1_ps(-0.0f));
  }

  LowWords<kParts> low_;
  __m512i magic_;
  __m512 zero_;
};

// The words of floats, with all products of a scale in the first octaves; the levels themselves if
// the scale is 1. They are exact as bfloat16.
template <unsigned kParts>
class FloatWords {
 public:
  FloatWords(const Levels& levels, const LowBits low[]) {
    const FloatLevels numbers(levels);
    subnormal_levels_ = load_numbers(numbers.subnormal, 0xFFFFFFFF);
    normal_levels_ = load_numbers(numbers.normal, 0xFFFFFFFF);
    for (unsigned p = 0; p < kParts; ++p) {
      packed_[p] = low[p].packed;
      from_[p] = _mm_cvtsi32_si128(static_cast<int>(low[p].from));
    }
    start(1);
  }

  BF16CODECS_INLINE void start(float scale) {
    const Numbers scales = repeated(scale);
    subnormal_ = words_of<Precision::bfloat16>(multiply(subnormal_levels_, scales));
    normal_ = _mm512_sub_epi16(words_of<Precision::bfloat16>(multiply(normal_levels_, scales)),
                               _mm512_set1_epi16(kOctave));
  }
  BF16CODECS_INLINE __m512i items(const uint8_t* symbols, size_t at, __mmask32 mask) const {
    const __m512i symbol = load_words(symbols + at, mask), index = low_bits(at, mask);
    const __mmask32 is_subnormal = _mm512_testn_epi16_mask(symbol, _mm512_set1_epi16(31));
    const __m512i octaves = _mm512_srli_epi16(_mm512_slli_epi16(symbol, 11), 4);
    const __m512i normal = _mm512_add_epi16(_mm512_permutexvar_epi16(index, normal_), octaves);
    return _mm512_mask_permutexvar_epi16(normal, is_subnormal, index, subnormal_);
  }

 private:
  // The levels are repeated: above the low bits, there may be others.
  BF16CODECS_INLINE __m512i low_bits(size_t at, __mmask32 mask) const {
    const __m512i low = _mm512_srl_epi16(load_words(packed_[0] + at, mask), from_[0]);
    if constexpr (kParts == 1) return low;
    const __m512i lowest = _mm512_srl_epi16(load_words(packed_[1] + at, mask), from_[1]);
    return _mm512_ternarylogic_epi32(_mm512_set1_epi16(1), lowest, _mm512_slli_epi16(low, 1), 0xCA);
  }

  const uint8_t* packed_[2] = {};
  __m128i from_[2];
  Numbers subnormal_levels_, normal_levels_;
  __m512i subnormal_, normal_;
};

template <unsigned kParts>
class FloatNumbers {
 public:
  FloatNumbers(const Levels& levels, const LowBits low[]) : words_(levels, low) {}

  BF16CODECS_INLINE Numbers at(const uint8_t* symbols, size_t at, __mmask32 mask) const {
    const __m512i words = words_.items(symbols, at, mask);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)),
            _mm512_castsi512_ps(_mm512_mask_blend_epi16(kOddWords, _mm512_setzero_si512(), words))};
  }

 private:
  FloatWords<kParts> words_;
};

// --- products

// Multiplies levels by scales, for runs of any length.
template <typename LevelNumbers, Precision kPrecision>
class Multiplied {
 public:
  Multiplied(const Levels& levels, const LowBits low[])
      : levels_(levels, low), scales_(repeated(1)) {}

  BF16CODECS_INLINE void start(float scale) { scales_ = repeated(scale); }
  BF16CODECS_INLINE __m512i items(const uint8_t* symbols, size_t at, __mmask32 mask) const {
    return items(symbols, at, mask, scales_);
  }
  BF16CODECS_INLINE __m512i items(const uint8_t* symbols, size_t at, __mmask32 mask,
                                  const Numbers& scales) const {
    return words_of<kPrecision>(multiply(levels_.at(symbols, at, mask), scales));
  }

 private:
  LevelNumbers levels_;
  Numbers scales_;
};

// Products of codes without low bits, looked up.
template <Precision kPrecision>
class SymbolProducts {
 public:
  SymbolProducts(const Levels& levels, const LowBits[])
      : levels_(load_numbers(SymbolLevels(levels).of, 0xFFFFFFFF)) {}

  BF16CODECS_INLINE void start(float scale) {
    words_ = words_of<kPrecision>(multiply(levels_, repeated(scale)));
  }
  BF16CODECS_INLINE __m512i items(const uint8_t* symbols, size_t at, __mmask32 mask) const {
    return _mm512_permutexvar_epi16(load_words(symbols + at, mask), words_);
  }

 private:
  Numbers levels_;
  __m512i words_;
};

// --- runs

// Where the items of a call are.
struct Place {
  const uint8_t* symbols;
  uint8_t* items;

  BF16CODECS_INLINE void put(size_t at, __mmask32 mask, __m512i words) const {
    _mm512_mask_storeu_epi16(items + 2 * at, mask, words);
  }
};

// These have copies of what they read: items might be stored over the rest, for all that compilers
// know, who would load pointers anew for each step.
template <typename Of>
BF16CODECS_INLINE void multiply_long(Of of, const ScaleRuns runs, const Place place, size_t at) {
  for (size_t r = 0; r < runs.count; ++r) {
    of.start(runs.scales[r]);
    const size_t end = at + runs.length;
    for (; at + 32 <= end; at += 32) {
      place.put(at, 0xFFFFFFFF, of.items(place.symbols, at, 0xFFFFFFFF));
    }
    if (at == end) continue;
    place.put(at, first(end - at), of.items(place.symbols, at, first(end - at)));
    at = end;
  }
}

// Of a scale for each item.
template <typename Of>
BF16CODECS_INLINE void multiply_each(const Of of, const ScaleRuns runs, const Place place,
                                     size_t at) {
  const auto step = [&](size_t i, __mmask32 mask) {
    const Numbers scales = load_numbers(runs.scales + i, mask);
    place.put(at + i, mask, of.items(place.symbols, at + i, mask, scales));
  };
  size_t i = 0;
  for (; i + 32 <= runs.count; i += 32) step(i, 0xFFFFFFFF);
  if (i < runs.count) step(i, first(runs.count - i));
}

// Of a scale for 16 items: two runs at a time.
template <typename Of>
BF16CODECS_INLINE void multiply_sixteens(const Of of, const ScaleRuns runs, const Place place,
                                         size_t at) {
  const auto step = [&](__m512 scales, __mmask32 mask) {
    place.put(at, mask, of.items(place.symbols, at, mask, {scales, scales}));
    at += 32;
  };
  size_t r = 0;
  for (; r + 2 <= runs.count; r += 2) {
    const __m512 scale = _mm512_set1_ps(runs.scales[r]);
    const __m512 next = _mm512_set1_ps(runs.scales[r + 1]);
    step(_mm512_mask_mov_ps(scale, 0xFF00, next), 0xFFFFFFFF);
  }
  if (r < runs.count) step(_mm512_set1_ps(runs.scales[r]), 0xFFFF);
}

// Each run in the way that is fastest for its length: in a run of 32 items or more, `Products` take
// less time.
template <typename Products, typename Others>
void multiply_all(const Levels& levels, const LowBits low[], const ScaleRuns* runs, size_t n_runs,
                  const Place& place) {
  Products products(levels, low);
  Others others(levels, low);
  size_t at = 0;
  for (size_t i = 0; i < n_runs; ++i) {
    const ScaleRuns& equal = runs[i];
    if (equal.length == 1) {
      multiply_each(others, equal, place, at);
    } else if (equal.length == 16) {
      multiply_sixteens(others, equal, place, at);
    } else {
      multiply_long(products, equal, place, at);
    }
    at += equal.length * equal.count;
  }
}

template <Precision kPrecision, unsigned kParts>
void multiply_low(const Levels& levels, const LowBits low[], const ScaleRuns* runs, size_t n_runs,
                  const Place& place) {
  if (levels.family == Family::integers) {
    using Integral = Multiplied<IntegerNumbers<kParts>, kPrecision>;
    return multiply_all<Integral, Integral>(levels, low, runs, n_runs, place);
  }
  using Floating = Multiplied<FloatNumbers<kParts>, kPrecision>;
  if constexpr (kPrecision == Precision::bfloat16) {
    multiply_all<FloatWords<kParts>, Floating>(levels, low, runs, n_runs, place);
  } else {
    multiply_all<Floating, Floating>(levels, low, runs, n_runs, place);
  }
}

template <Precision kPrecision>
void multiply_rounded(const Levels& levels, const LowBits low[], const ScaleRuns* runs,
                      size_t n_runs, const Place& place) {
  if (levels.low_bits == 3) return multiply_low<kPrecision, 2>(levels, low, runs, n_runs, place);
  if (levels.low_bits != 0) return multiply_low<kPrecision, 1>(levels, low, runs, n_runs, place);
  using Symbols = SymbolProducts<kPrecision>;
  multiply_all<Symbols, Multiplied<SymbolNumbers, kPrecision>>(levels, low, runs, n_runs, place);
}

size_t least_run(const Levels&, Precision, Container container) {
  return container == Container::float32 ? kNoRuns : 1;
}

void multiply_runs(const Levels& levels, Precision precision, Container, const uint8_t* symbols,
                   const LowBits low[], const ScaleRuns* runs, size_t n_runs, uint8_t* items) {
  const Place place{symbols, items};
  switch (precision) {
    case Precision::bfloat16:
      return multiply_rounded<Precision::bfloat16>(levels, low, runs, n_runs, place);
    case Precision::binary16:
      return multiply_rounded<Precision::binary16>(levels, low, runs, n_runs, place);
    default:
      return multiply_rounded<Precision::binary16_bfloat16>(levels, low, runs, n_runs, place);
  }
}

}  // namespace
}  // namespace bf16codecs
