// The loops of grids, compiled for AVX2; and items of 16 bits by runs of one scale. Of codes
// without low bits, and of floats as bfloat16, the products of a run's scale are looked up by
// shuffles of bytes. Integers as bfloat16 with low bits, or in short runs, are multiplied.

#include <immintrin.h>

#include "kernels/quantized_levels.h"

namespace bf16codecs {
namespace {

BF16CODECS_INLINE __m256i load(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
BF16CODECS_INLINE void store(void* p, __m256i v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}
BF16CODECS_INLINE __m128i count_of(int shift) {
  return _mm_cvtsi32_si128(shift);
}

// --- numbers, and their words as bfloat16

// The numbers of 16 items: those at even places, and those at odd ones.
struct Numbers {
  __m256 even, odd;
};

// Of 16 items, eight from each address.
BF16CODECS_INLINE Numbers load_numbers(const float* first, const float* second) {
  const __m256 low = _mm256_loadu2_m128(second, first);
  const __m256 high = _mm256_loadu2_m128(second + 4, first + 4);
  return {_mm256_shuffle_ps(low, high, 0x88), _mm256_shuffle_ps(low, high, 0xDD)};
}

// One for eight items, and one for the next eight.
BF16CODECS_INLINE Numbers repeated(float first, float second) {
  const __m256 x = _mm256_set_m128(_mm_set1_ps(second), _mm_set1_ps(first));
  return {x, x};
}
BF16CODECS_INLINE Numbers repeated(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

template <Formula kFormula>
using Factors = FactorsOf<Numbers, kFormula>;  // of 16 items

// Rounds products to bfloat16, the even and the odd of 16 items. Adding 0x8000 rounds ties up:
// where nothing is left below the upper half, it was a tie, and the half must be even.
BF16CODECS_INLINE __m256i rounded_words(__m256 even, __m256 odd) {
  const __m256i half = _mm256_set1_epi32(0x8000);
  const __m256i x = _mm256_add_epi32(_mm256_castps_si256(even), half);
  const __m256i y = _mm256_add_epi32(_mm256_castps_si256(odd), half);
  const __m256i words = _mm256_blend_epi16(_mm256_srli_epi32(x, 16), y, 0xAA);
  const __m256i rest = _mm256_blend_epi16(x, _mm256_slli_epi32(y, 16), 0xAA);
  const __m256i is_tie = _mm256_cmpeq_epi16(rest, _mm256_setzero_si256());
  return _mm256_andnot_si256(_mm256_srli_epi16(is_tie, 15), words);
}

// Half rounds numbers to bfloat16: with_offset() in quantized_items.h.
BF16CODECS_INLINE __m256 half_rounded(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x), one = _mm256_set1_epi32(1);
  const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
  const __m256i half = _mm256_add_epi32(is_odd, _mm256_set1_epi32(0x7FFF));
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xFFFF0000));
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_add_epi32(bits, half), upper));
}

// What is rounded to be an item.
template <Formula kFormula>
BF16CODECS_INLINE __m256 combined(__m256 level, __m256 scale, [[maybe_unused]] __m256 offset) {
  if constexpr (kFormula == Formula::difference)
    return _mm256_mul_ps(half_rounded(_mm256_sub_ps(level, offset)), scale);
  const __m256 product = _mm256_mul_ps(level, scale);
  if constexpr (kFormula == Formula::sum) return _mm256_add_ps(product, offset);
  if constexpr (kFormula == Formula::rounded_sum)
    return _mm256_add_ps(half_rounded(product), offset);
  return product;
}

template <Formula kFormula>
BF16CODECS_INLINE __m256i items_of(const Numbers& levels, const Factors<kFormula>& of) {
  Numbers offsets = of.scales;  // not used by products
  if constexpr (kFormula != Formula::product) offsets = of.offsets;
  return rounded_words(combined<kFormula>(levels.even, of.scales.even, offsets.even),
                       combined<kFormula>(levels.odd, of.scales.odd, offsets.odd));
}

// --- products that are looked up

// 32 words, in their order.
struct WordTable {
  __m256i first, second;

  // The low or the high bytes.
  BF16CODECS_INLINE __m256i bytes(int shift) const {
    const __m256i mask = _mm256_set1_epi16(0xFF);
    const __m256i x = _mm256_and_si256(_mm256_srli_epi16(first, shift), mask);
    const __m256i y = _mm256_and_si256(_mm256_srli_epi16(second, shift), mask);
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(x, y), 0xD8);
  }
};

// The levels of 32 codes. As bfloat16, their items stay in registers: by way of memory, NF4 took
// 0.02 ns a value more.
struct LevelTable {
  alignas(32) float levels[32];
  Numbers first, second;

  explicit BF16CODECS_INLINE LevelTable(const float* from) {
    for (unsigned i = 0; i < 32; ++i) levels[i] = from[i];
    first = load_numbers(levels, levels + 8);
    second = load_numbers(levels + 16, levels + 24);
  }

  template <Formula kFormula, Precision kPrecision, Container kContainer>
  BF16CODECS_INLINE WordTable items(const ScaleRuns& runs, size_t r) const {
    if constexpr (kPrecision == Precision::bfloat16) {
      const auto of =
          load_factors<kFormula>(runs, [&](const float* numbers) { return repeated(numbers[r]); });
      return {items_of<kFormula>(first, of), items_of<kFormula>(second, of)};
    }
    alignas(32) uint8_t words[64];
    multiply_levels<kFormula, kPrecision, kContainer>(levels, runs, r, words);
    return {load(words), load(words + 32)};
  }
};

// A table of 32 bytes, each half in both halves of a register.
struct ByteTable {
  __m256i first, second;

  explicit BF16CODECS_INLINE ByteTable(__m256i bytes)
      : first(_mm256_permute2x128_si256(bytes, bytes, 0x00)),
        second(_mm256_permute2x128_si256(bytes, bytes, 0x11)) {}

  // Bit 4 of an index selects the half; the upper bits are zero.
  BF16CODECS_INLINE __m256i at(__m256i indices) const {
    const __m256i is_second = _mm256_slli_epi16(indices, 3);
    return _mm256_blendv_epi8(_mm256_shuffle_epi8(first, indices),
                              _mm256_shuffle_epi8(second, indices), is_second);
  }
};

// 32 words of low and high bytes, each half of a register by itself.
struct Words {
  __m256i even, odd;

  BF16CODECS_INLINE Words(__m256i low, __m256i high)
      : even(_mm256_unpacklo_epi8(low, high)), odd(_mm256_unpackhi_epi8(low, high)) {}

  BF16CODECS_INLINE void store_to(uint8_t* items) const {
    store(items, _mm256_permute2x128_si256(even, odd, 0x20));
    store(items + 32, _mm256_permute2x128_si256(even, odd, 0x31));
  }
};

// Of codes without low bits.
template <Formula kFormula, Precision kPrecision, Container kContainer>
class SymbolProducts {
 public:
  static constexpr size_t kStep = 32;
  static constexpr unsigned kParts = 0;

  SymbolProducts(const Levels& levels, const LowBits[]) : levels_(SymbolLevels(levels).of) {}

  struct OfRun {
    ByteTable low, high;

    BF16CODECS_INLINE void items(const Codes& codes, uint8_t* out) const {
      const __m256i indices = _mm256_and_si256(load(codes.symbols), _mm256_set1_epi8(31));
      Words(low.at(indices), high.at(indices)).store_to(out);
    }
  };
  BF16CODECS_INLINE OfRun start(const ScaleRuns& runs, size_t r) const {
    const WordTable words = levels_.items<kFormula, kPrecision, kContainer>(runs, r);
    return {ByteTable(words.bytes(0)), ByteTable(words.bytes(8))};
  }

 private:
  LevelTable levels_;
};

// Of floats as bfloat16: the products of the first octaves are looked up.
template <unsigned kParts_>
class FloatProducts {
 public:
  static constexpr size_t kStep = 32;
  static constexpr unsigned kParts = kParts_;

  FloatProducts(const Levels& levels, const LowBits low[]) : levels_(Octaves(levels).of) {
    for (unsigned p = 0; p < kParts; ++p) from_[p] = count_of(static_cast<int>(low[p].from));
  }

  // The bytes of subnormal and of normal products, these an octave down.
  struct OfRun {
    ByteTable low, high;
    __m128i from[2];

    BF16CODECS_INLINE void items(const Codes& codes, uint8_t* out) const {
      const __m256i zero = _mm256_setzero_si256();
      const __m256i exponents = _mm256_and_si256(load(codes.symbols), _mm256_set1_epi8(31));
      const __m256i is_subnormal = _mm256_cmpeq_epi8(exponents, zero);
      const __m256i indices = low_bits(codes);
      Words words(at(low, indices, is_subnormal), at(high, indices, is_subnormal));
      const Words octaves(zero, exponents);  // times two
      words.even = _mm256_add_epi16(words.even, _mm256_srli_epi16(octaves.even, 1));
      words.odd = _mm256_add_epi16(words.odd, _mm256_srli_epi16(octaves.odd, 1));
      words.store_to(out);
    }

   private:
    // In four bits: the levels are repeated, where a code has fewer.
    BF16CODECS_INLINE __m256i low_bits(const Codes& codes) const {
      __m256i bits = _mm256_srl_epi16(load(codes.packed[0]), from[0]);
      if constexpr (kParts == 2) {
        const __m256i one = _mm256_set1_epi8(1);
        const __m256i lowest = _mm256_srl_epi16(load(codes.packed[1]), from[1]);
        const __m256i upper = _mm256_add_epi8(bits, bits);
        bits = _mm256_or_si256(upper, _mm256_and_si256(lowest, one));
      }
      return _mm256_and_si256(bits, _mm256_set1_epi8(15));
    }
    BF16CODECS_INLINE static __m256i at(const ByteTable& table, __m256i indices,
                                        __m256i is_subnormal) {
      return _mm256_blendv_epi8(_mm256_shuffle_epi8(table.second, indices),
                                _mm256_shuffle_epi8(table.first, indices), is_subnormal);
    }
  };
  BF16CODECS_INLINE OfRun start(const ScaleRuns& runs, size_t r) const {
    WordTable words =
        levels_.items<Formula::product, Precision::bfloat16, Container::bfloat16>(runs, r);
    words.second = _mm256_sub_epi16(words.second, _mm256_set1_epi16(kOctave));
    return {ByteTable(words.bytes(0)), ByteTable(words.bytes(8)), {from_[0], from_[1]}};
  }

 private:
  // The levels of the first octaves.
  struct Octaves {
    float of[32];

    explicit Octaves(const Levels& levels) {
      const FloatLevels numbers(levels);
      for (unsigned i = 0; i < 16; ++i) {
        of[i] = numbers.subnormal[i];
        of[16 + i] = numbers.normal[i];
      }
    }
  };

  LevelTable levels_;
  __m128i from_[2] = {};
};

// --- integers as bfloat16, multiplied

template <Formula kFormula, unsigned kParts_>
class IntegerProducts {
 public:
  static constexpr size_t kStep = 32;
  static constexpr unsigned kParts = kParts_;

  IntegerProducts(const Levels& levels, const LowBits low[])
      : magic_(_mm256_set1_epi32(static_cast<int>(IntegerWords(levels, kEnd).magic))),
        zero_(_mm256_set1_ps(IntegerWords(levels, kEnd).zero)) {
    if constexpr (kParts == 0) return;
    const LowPlace place(low[0], kEnd);
    shift_ = count_of(place.shift);
    mask_ = _mm256_set1_epi8(static_cast<char>(place.mask));
    from_ = count_of(static_cast<int>(low[1].from));
  }

  // Of 32 items, in the order of Words.
  struct OfItems {
    Factors<kFormula> even, odd;
  };

  struct OfRun {
    const IntegerProducts& all;
    Factors<kFormula> of;

    BF16CODECS_INLINE void items(const Codes& codes, uint8_t* out) const {
      all.items(codes, {of, of}, out);
    }
  };
  BF16CODECS_INLINE OfRun start(const ScaleRuns& runs, size_t r) const {
    return {*this, load_factors<kFormula>(runs, [&](const float* x) { return repeated(x[r]); })};
  }
  // Of two runs of 16 codes.
  BF16CODECS_INLINE OfRun start_two(const ScaleRuns& runs, size_t r) const {
    const auto load = [&](const float* x) { return repeated(x[r], x[r + 1]); };
    return {*this, load_factors<kFormula>(runs, load)};
  }

  // Of a scale for each item, and an offset.
  BF16CODECS_INLINE static OfItems load_each(const ScaleRuns& runs, size_t i) {
    const auto even = [&](const float* x) { return load_numbers(x + i, x + i + 16); };
    const auto odd = [&](const float* x) { return load_numbers(x + i + 8, x + i + 24); };
    return {load_factors<kFormula>(runs, even), load_factors<kFormula>(runs, odd)};
  }

  BF16CODECS_INLINE void items(const Codes& codes, const OfItems& of, uint8_t* out) const {
    const __m256i symbols = _mm256_and_si256(load(codes.symbols), _mm256_set1_epi8(31));
    const __m256i low = low_bits(codes);
    const __m256i is_negative_zero =
        _mm256_cmpeq_epi8(_mm256_or_si256(symbols, low), _mm256_setzero_si256());
    const bool has_any = _mm256_movemask_epi8(is_negative_zero) != 0;
    Words words(low, symbols);
    words.even = half(words.even, of.even, has_any);
    words.odd = half(words.odd, of.odd, has_any);
    words.store_to(out);
  }

 private:
  static constexpr unsigned kEnd = 8;  // the upper bytes of words are symbols

  // In the upper bits of bytes.
  BF16CODECS_INLINE __m256i low_bits(const Codes& codes) const {
    if constexpr (kParts == 0) return _mm256_setzero_si256();
    const __m256i low = _mm256_and_si256(_mm256_sll_epi16(load(codes.packed[0]), shift_), mask_);
    if constexpr (kParts == 1) return low;
    const __m256i lowest = _mm256_srl_epi16(load(codes.packed[1]), from_);
    const __m256i one = _mm256_and_si256(lowest, _mm256_set1_epi8(1));
    return _mm256_or_si256(low, _mm256_slli_epi16(one, 5));
  }

  // Items of 16 codes.
  BF16CODECS_INLINE __m256i half(__m256i codes, const Factors<kFormula>& of, bool has_any) const {
    // The odd words of `magic_` are the even items' exponents.
    const __m256i even = _mm256_blend_epi16(codes, magic_, 0xAA);
    const __m256i odd = _mm256_or_si256(_mm256_srli_epi32(codes, 16), magic_);
    Numbers levels{_mm256_sub_ps(_mm256_castsi256_ps(even), zero_),
                   _mm256_sub_ps(_mm256_castsi256_ps(odd), zero_)};
    if (has_any) [[unlikely]] {
      levels.even = with_negative_zeros(levels.even, even);
      levels.odd = with_negative_zeros(levels.odd, odd);
    }
    return items_of<kFormula>(levels, of);
  }
  BF16CODECS_INLINE __m256 with_negative_zeros(__m256 levels, __m256i codes) const {
    const __m256 is_negative_zero = _mm256_castsi256_ps(_mm256_cmpeq_epi32(codes, magic_));
    return _mm256_blendv_ps(levels, _mm256_set1_ps(-0.0f), is_negative_zero);
  }

  __m256i magic_;
  __m256 zero_;
  __m128i shift_ = {}, from_ = {};
  __m256i mask_ = {};
};

// Integers without low bits, times scales: the products of 16 magnitudes are looked up, and those
// of negative levels differ from them by the sign only.
class MagnitudeProducts {
 public:
  static constexpr size_t kStep = 32;
  static constexpr unsigned kParts = 0;

  // The low and the high bytes of the products, for the first 16 codes and for the others.
  struct OfRun {
    __m256i low, high;

    BF16CODECS_INLINE void items(const Codes& codes, uint8_t* out) const {
      const __m256i symbols = _mm256_and_si256(load(codes.symbols), _mm256_set1_epi8(31));
      const __m256i levels = _mm256_sub_epi8(symbols, _mm256_set1_epi8(16));
      const __m256i signs = _mm256_and_si256(levels, _mm256_set1_epi8(-128));
      const __m256i magnitudes = _mm256_abs_epi8(levels);  // of the code for -0: 16, taken for 0
      Words(_mm256_shuffle_epi8(low, magnitudes),
            _mm256_xor_si256(_mm256_shuffle_epi8(high, magnitudes), signs))
          .store_to(out);
    }
  };
  BF16CODECS_INLINE static OfRun start(const ScaleRuns& runs, size_t r) {
    return of_both(products(runs.scales[r]), products(runs.scales[r]));
  }
  // Of two runs of 16 codes.
  BF16CODECS_INLINE static OfRun start_two(const ScaleRuns& runs, size_t r) {
    return of_both(products(runs.scales[r]), products(runs.scales[r + 1]));
  }

 private:
  BF16CODECS_INLINE static OfRun of_both(__m256i first, __m256i second) {
    return {_mm256_permute2x128_si256(first, second, 0x20),
            _mm256_permute2x128_si256(first, second, 0x31)};
  }
  // The low bytes, and behind them the high bytes.
  BF16CODECS_INLINE static __m256i products(float scale) {
    const __m256 even = _mm256_setr_ps(0, 2, 4, 6, 8, 10, 12, 14);
    const __m256 odd = _mm256_setr_ps(1, 3, 5, 7, 9, 11, 13, 15), x = _mm256_set1_ps(scale);
    const __m256i words = rounded_words(_mm256_mul_ps(even, x), _mm256_mul_ps(odd, x));
    const __m256i low = _mm256_and_si256(words, _mm256_set1_epi16(0xFF));
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(low, _mm256_srli_epi16(words, 8)), 0xD8);
  }
};

}  // namespace
}  // namespace bf16codecs

#include "kernels/quantized_runs.h"

namespace bf16codecs {

const QuantizedKernels kAvx2QuantizedKernels =
    BF16CODECS_QUANTIZED_KERNELS(least_run, multiply_runs);

}  // namespace bf16codecs
