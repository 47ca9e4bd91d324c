#pragma once

// The kernels of grids for AVX-512: items of 16 bits by runs of one scale, 32 at a time. Of codes
// without low bits, and of floats as bfloat16, the items of a run's scale and offset are looked up
// in registers. All others are multiplied. Each file that includes this has a copy of its own: with
// BF16CODECS_AVX512_BF16, numbers are rounded to bfloat16 by the instruction for it.

#include "kernels/quantized_levels.h"
#include "kernels/x86/avx512.h"

namespace bf16codecs {
namespace {

// The numbers of 32 items: the first 16, and the others.
struct Numbers {
  __m512 low, high;
};

constexpr __mmask32 kEvenWords = 0x55555555, kOddWords = 0xAAAAAAAA;
constexpr int kToNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

// The numbers of the words that permutations bring to the even and the odd places of 16 items: each
// of the first 16, and of the others, twice.
struct Twice {
  alignas(64) uint16_t low[32], high[32];
};
constexpr Twice kTwice = [] {
  Twice places{};
  for (unsigned i = 0; i < 32; ++i) {
    places.low[i] = static_cast<uint16_t>(i / 2);
    places.high[i] = static_cast<uint16_t>(16 + i / 2);
  }
  return places;
}();

// Words as parts of 32-bit numbers, at the even places or the odd ones; the others are `rest`.
template <__mmask32 kPlaces>
BF16CODECS_INLINE Numbers spread(__m512i words, __m512i rest) {
  const auto half = [&](const uint16_t* places) {
    const __m512i from = _mm512_load_si512(places);
    return _mm512_castsi512_ps(_mm512_mask_permutexvar_epi16(rest, kPlaces, from, words));
  };
  return {half(kTwice.low), half(kTwice.high)};
}

#if defined(BF16CODECS_AVX512_BF16)

// The instruction rounds to nearest, ties to even, as everywhere else. It takes subnormal numbers
// for zeros, but the format allows no such products. This takes one instruction instead of seven.
BF16CODECS_INLINE __m512i bfloat16_words(const Numbers& x) {
  return __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(x.high, x.low));
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
  alignas(64) static constexpr int16_t kOdd[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                   23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                   45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(with_half(x.low), _mm512_load_si512(kOdd), with_half(x.high));
}

#endif

// Rounds products, as quantized_loops.h does.
template <Precision kPrecision>
BF16CODECS_INLINE __m512i words_of(Numbers x) {
  if constexpr (kPrecision != Precision::bfloat16) {
    const __m256i low = _mm512_cvtps_ph(x.low, kToNearest);
    const __m256i high = _mm512_cvtps_ph(x.high, kToNearest);
    if constexpr (kPrecision == Precision::binary16)
      return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    x = {_mm512_cvtph_ps(low), _mm512_cvtph_ps(high)};
  }
  return bfloat16_words(x);
}

BF16CODECS_INLINE Numbers multiply(const Numbers& x, const Numbers& y) {
  return {_mm512_mul_ps(x.low, y.low), _mm512_mul_ps(x.high, y.high)};
}

BF16CODECS_INLINE Numbers add(const Numbers& x, const Numbers& y) {
  return {_mm512_add_ps(x.low, y.low), _mm512_add_ps(x.high, y.high)};
}
BF16CODECS_INLINE Numbers subtract(const Numbers& x, const Numbers& y) {
  return {_mm512_sub_ps(x.low, y.low), _mm512_sub_ps(x.high, y.high)};
}

BF16CODECS_INLINE Numbers repeated(float x) {
  return {_mm512_set1_ps(x), _mm512_set1_ps(x)};
}

// The numbers of bfloat16.
BF16CODECS_INLINE Numbers numbers_of(__m512i words) {
  return spread<kOddWords>(words, _mm512_setzero_si512());
}

// Half rounds numbers: with_offset() in quantized_items.h.
template <Precision kPrecision>
BF16CODECS_INLINE Numbers half_rounded(const Numbers& x) {
  if constexpr (kPrecision == Precision::bfloat16) return numbers_of(bfloat16_words(x));
  return {_mm512_cvtph_ps(_mm512_cvtps_ph(x.low, kToNearest)),
          _mm512_cvtph_ps(_mm512_cvtps_ph(x.high, kToNearest))};
}

template <Formula kFormula>
using Factors = FactorsOf<Numbers, kFormula>;  // of 32 items

// Of a run.
template <Formula kFormula>
BF16CODECS_INLINE Factors<kFormula> factors_of(const ScaleRuns& runs, size_t r) {
  return load_factors<kFormula>(runs, [r](const float* numbers) { return repeated(numbers[r]); });
}

// The items of levels.
template <Formula kFormula, Precision kPrecision>
BF16CODECS_INLINE __m512i items_of(const Numbers& levels, const Factors<kFormula>& of) {
  if constexpr (kFormula == Formula::difference) {
    const Numbers differences = half_rounded<kPrecision>(subtract(levels, of.offsets));
    return words_of<kPrecision>(multiply(differences, of.scales));
  } else {
    Numbers numbers = multiply(levels, of.scales);
    if constexpr (kFormula == Formula::rounded_sum) numbers = half_rounded<kPrecision>(numbers);
    if constexpr (kFormula != Formula::product) numbers = add(numbers, of.offsets);
    return words_of<kPrecision>(numbers);
  }
}

// Of n <= 32 items.
BF16CODECS_INLINE __mmask32 first(size_t n) {
  return n < 32 ? (1u << n) - 1 : 0xFFFFFFFF;
}

// Bytes as words.
BF16CODECS_INLINE __m512i load_words(const uint8_t* bytes, __mmask32 mask) {
  return _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(mask, bytes));
}

BF16CODECS_INLINE Numbers load_numbers(const float* numbers, __mmask32 mask) {
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), numbers),
          _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), numbers + 16)};
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
  Numbers levels;

  SymbolNumbers(const Levels& of, const LowBits[])
      : levels(load_numbers(SymbolLevels(of).of, 0xFFFFFFFF)) {}

  // A permutation takes the lowest five bits of a symbol.
  BF16CODECS_INLINE Numbers at(const uint8_t* symbols, size_t at, __mmask32 mask) const {
    const __m512i none = _mm512_setzero_si512();
    const Numbers places = spread<kEvenWords>(load_words(symbols + at, mask), none);
    const auto at_places = [&](__m512 from) {
      return _mm512_permutex2var_ps(levels.low, _mm512_castps_si512(from), levels.high);
    };
    return {at_places(places.low), at_places(places.high)};
  }
};

#if defined(BF16CODECS_AVX512_BF16)

// In each 32-bit number, byte 2 is the symbol, with the lowest bit of the exponent above it, and
// the upper bits of byte 1 are the low bits. This takes five instructions; by way of words, it
// takes eight.
template <unsigned kParts>
class IntegerCodes {
 public:
  static constexpr unsigned kEnd = 16;

  IntegerCodes(const Levels& levels, const LowBits low[])
      : magic_(_mm512_set1_epi32(static_cast<int>(IntegerWords(levels, kEnd).magic))) {
    const auto byte = static_cast<char>(IntegerWords(levels, kEnd).magic >> 16 & 0x80);
    exponents_ = _mm512_zextsi256_si512(_mm256_set1_epi8(byte));
    unsigned end = 8;
    for (unsigned p = 0; p < kParts; ++p) {
      const LowPlace place(low[p], end);
      packed_[p] = low[p].packed;
      shift_[p] = _mm512_set1_epi32(place.shift);
      const __m256i mask = _mm256_set1_epi8(static_cast<char>(place.mask));
      mask_[p] = _mm512_inserti64x4(_mm512_set1_epi8(p == 0 ? 31 : 0), mask, 1);
      end -= low[p].bits;
    }
  }

  BF16CODECS_INLINE Numbers at(const uint8_t* symbols, size_t at, __mmask32 mask) const {
    // The lower half of `bytes` has symbols, the upper half low bits. Rotated to the right, too.
    const __m512i of_symbols = _mm512_zextsi256_si512(_mm256_maskz_loadu_epi8(mask, symbols + at));
    __m512i bytes =
        _mm512_mask_rolv_epi32(of_symbols, 0xFF00, twice(packed_[0] + at, mask), shift_[0]);
    bytes = _mm512_ternarylogic_epi32(bytes, mask_[0], exponents_, 0xEA);
    if constexpr (kParts == 2) {
      const __m512i lowest = _mm512_rolv_epi32(twice(packed_[1] + at, mask), shift_[1]);
      bytes = _mm512_ternarylogic_epi32(bytes, lowest, mask_[1], 0xF8);
    }
    return {placed(bytes, kPlaces.low), placed(bytes, kPlaces.high)};
  }

 private:
  struct Places {
    alignas(64) uint8_t low[64], high[64];
  };
  static constexpr Places kPlaces = [] {
    Places places{};
    for (unsigned i = 0; i < 16; ++i) {
      places.low[4 * i + 1] = static_cast<uint8_t>(32 + i);
      places.low[4 * i + 2] = static_cast<uint8_t>(i);
      places.high[4 * i + 1] = static_cast<uint8_t>(48 + i);
      places.high[4 * i + 2] = static_cast<uint8_t>(16 + i);
    }
    return places;
  }();

  BF16CODECS_INLINE static __m512i twice(const uint8_t* bytes, __mmask32 mask) {
    return _mm512_broadcast_i64x4(_mm256_maskz_loadu_epi8(mask, bytes));
  }
  BF16CODECS_INLINE __m512 placed(__m512i bytes, const uint8_t places[64]) const {
    constexpr __mmask64 kMiddle = 0x6666666666666666;
    const __m512i from = _mm512_load_si512(places);
    return _mm512_castsi512_ps(_mm512_mask_permutexvar_epi8(magic_, kMiddle, from, bytes));
  }

  const uint8_t* packed_[kParts];
  __m512i shift_[kParts], mask_[kParts], magic_, exponents_;
};

#else

template <unsigned kParts>
class IntegerCodes {
 public:
  static constexpr unsigned kEnd = IntegerWords::kEnd;

  IntegerCodes(const Levels& levels, const LowBits low[])
      : low_(low, kEnd), magic_(_mm512_set1_epi32(static_cast<int>(IntegerWords(levels).magic))) {}

  BF16CODECS_INLINE Numbers at(const uint8_t* symbols, size_t at, __mmask32 mask) const {
    const __m512i symbol = _mm512_slli_epi16(load_words(symbols + at, mask), kEnd);
    return spread<kEvenWords>(low_.with(symbol, at, mask), magic_);
  }

 private:
  LowWords<kParts> low_;
  __m512i magic_;
};

#endif

template <unsigned kParts>
class IntegerNumbers {
 public:
  IntegerNumbers(const Levels& levels, const LowBits low[])
      : codes_(levels, low),
        magic_(_mm512_set1_epi32(static_cast<int>(in(levels).magic))),
        zero_(_mm512_set1_ps(in(levels).zero)) {}

  BF16CODECS_INLINE Numbers at(const uint8_t* symbols, size_t at, __mmask32 mask) const {
    const Numbers codes = codes_.at(symbols, at, mask);
    Numbers levels = subtract(codes, {zero_, zero_});
    const __m512i least =
        _mm512_min_epu32(_mm512_castps_si512(codes.low), _mm512_castps_si512(codes.high));
    if (_mm512_cmpeq_epi32_mask(least, magic_) != 0) [[unlikely]] {
      levels.low = with_negative_zeros(levels.low, codes.low);
      levels.high = with_negative_zeros(levels.high, codes.high);
    }
    return levels;
  }

 private:
  static IntegerWords in(const Levels& levels) {
    return IntegerWords(levels, IntegerCodes<kParts>::kEnd);
  }
  BF16CODECS_INLINE __m512 with_negative_zeros(__m512 levels, __m512 codes) const {
    const __mmask16 are_zero = _mm512_cmpeq_epi32_mask(_mm512_castps_si512(codes), magic_);
    return _mm512_mask_mov_ps(levels, are_zero, _mm512_set1_ps(-0.0f));
  }

  IntegerCodes<kParts> codes_;
  __m512i magic_;
  __m512 zero_;
};

// The words of floats, with all products of a scale in the first octaves; the levels themselves if
// the scale is 1. They are exact as bfloat16.
template <unsigned kParts>
class FloatWords {
 public:
  static constexpr Formula kFormula = Formula::product;

  FloatWords(const Levels& levels, const LowBits low[]) {
    const FloatLevels numbers(levels);
    subnormal_levels_ = load_numbers(numbers.subnormal, 0xFFFFFFFF);
    normal_levels_ = load_numbers(numbers.normal, 0xFFFFFFFF);
    for (unsigned p = 0; p < kParts; ++p) {
      packed_[p] = low[p].packed;
      from_[p] = _mm_cvtsi32_si128(static_cast<int>(low[p].from));
    }
    start({repeated(1)});
  }

  BF16CODECS_INLINE void start(const Factors<Formula::product>& of) {
    const Numbers& scales = of.scales;
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
    return numbers_of(words);
  }

 private:
  FloatWords<kParts> words_;
};

// --- products

// Multiplies levels by scales, and adds offsets, for runs of any length.
template <typename LevelNumbers, Formula kFormula_, Precision kPrecision>
class Multiplied {
 public:
  static constexpr Formula kFormula = kFormula_;

  Multiplied(const Levels& levels, const LowBits low[]) : levels_(levels, low), of_run_() {}

  BF16CODECS_INLINE void start(const Factors<kFormula>& of) { of_run_ = of; }
  BF16CODECS_INLINE __m512i items(const uint8_t* symbols, size_t at, __mmask32 mask) const {
    return items(symbols, at, mask, of_run_);
  }
  BF16CODECS_INLINE __m512i items(const uint8_t* symbols, size_t at, __mmask32 mask,
                                  const Factors<kFormula>& of) const {
    return items_of<kFormula, kPrecision>(levels_.at(symbols, at, mask), of);
  }

 private:
  LevelNumbers levels_;
  Factors<kFormula> of_run_;
};

// Items of codes without low bits, looked up.
template <Formula kFormula_, Precision kPrecision>
class SymbolProducts {
 public:
  static constexpr Formula kFormula = kFormula_;

  SymbolProducts(const Levels& levels, const LowBits[])
      : levels_(load_numbers(SymbolLevels(levels).of, 0xFFFFFFFF)) {}

  BF16CODECS_INLINE void start(const Factors<kFormula>& of) {
    words_ = items_of<kFormula, kPrecision>(levels_, of);
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
    of.start(factors_of<Of::kFormula>(runs, r));
    const size_t end = at + runs.length;
    const auto step = [&](size_t i, __mmask32 mask) {
      place.put(i, mask, of.items(place.symbols, i, mask));
    };
    for (; at + 64 <= end; at += 64) {
      step(at, 0xFFFFFFFF);
      step(at + 32, 0xFFFFFFFF);
    }
    if (at + 32 <= end) {
      step(at, 0xFFFFFFFF);
      at += 32;
    }
    if (at == end) continue;
    step(at, first(end - at));
    at = end;
  }
}

// Of a scale for 32 items or a few times as many, without loops over a run's items: in groups of
// 32, these took 0.011 ns a value.
template <unsigned kSteps, typename Of>
BF16CODECS_INLINE void multiply_steps(Of of, const ScaleRuns runs, const Place place, size_t at) {
  for (size_t r = 0; r < runs.count; ++r) {
    of.start(factors_of<Of::kFormula>(runs, r));
    BF16CODECS_UNROLL
    for (unsigned s = 0; s < kSteps; ++s, at += 32) {
      place.put(at, 0xFFFFFFFF, of.items(place.symbols, at, 0xFFFFFFFF));
    }
  }
}

// Of a scale for each item.
template <typename Of>
BF16CODECS_INLINE void multiply_each(const Of of, const ScaleRuns runs, const Place place,
                                     size_t at) {
  const auto step = [&](size_t i, __mmask32 mask) {
    const auto each = load_factors<Of::kFormula>(
        runs, [=](const float* numbers) { return load_numbers(numbers + i, mask); });
    place.put(at + i, mask, of.items(place.symbols, at + i, mask, each));
  };
  size_t i = 0;
  for (; i + 32 <= runs.count; i += 32) step(i, 0xFFFFFFFF);
  if (i < runs.count) step(i, first(runs.count - i));
}

// Of a scale for 16 items: two runs at a time.
template <typename Of>
BF16CODECS_INLINE void multiply_sixteens(const Of of, const ScaleRuns runs, const Place place,
                                         size_t at) {
  const auto step = [&](size_t r, size_t next, __mmask32 mask) {
    const auto of_both = load_factors<Of::kFormula>(runs, [=](const float* numbers) {
      return Numbers{_mm512_set1_ps(numbers[r]), _mm512_set1_ps(numbers[next])};
    });
    place.put(at, mask, of.items(place.symbols, at, mask, of_both));
    at += 32;
  };
  size_t r = 0;
  for (; r + 2 <= runs.count; r += 2) step(r, r + 1, 0xFFFFFFFF);
  if (r < runs.count) step(r, r, 0xFFFF);
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
    } else if (equal.length == 32) {
      multiply_steps<1>(products, equal, place, at);
    } else if (equal.length == 64) {
      multiply_steps<2>(products, equal, place, at);
    } else if (equal.length == 128) {
      multiply_steps<4>(products, equal, place, at);
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
    return with_formula(levels.formula, [&]<Formula kFormula>() {
      using Integral = Multiplied<IntegerNumbers<kParts>, kFormula, kPrecision>;
      multiply_all<Integral, Integral>(levels, low, runs, n_runs, place);
    });
  }
  using Floating = Multiplied<FloatNumbers<kParts>, Formula::product, kPrecision>;
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
  with_formula(levels.formula, [&]<Formula kFormula>() {
    using Each = Multiplied<SymbolNumbers, kFormula, kPrecision>;
    multiply_all<SymbolProducts<kFormula, kPrecision>, Each>(levels, low, runs, n_runs, place);
  });
}

size_t least_run(const Levels&, Precision, Container container) {
  return container == Container::float32 ? kNoRuns : 1;
}

void multiply_runs(const Levels& levels, Precision precision, Container, const uint8_t* symbols,
                   const LowBits low[], const ScaleRuns* runs, size_t n_runs, uint8_t* items) {
  const Place place{symbols, items};
  switch (precision) {
    case Precision::bfloat16_binary16:
      multiply_rounded<Precision::bfloat16>(levels, low, runs, n_runs, place);
      return convert_to_binary16(items_of_runs(runs, n_runs), items);
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
