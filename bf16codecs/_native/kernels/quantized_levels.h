#pragma once

// What the kernels of grids by runs share: tables of levels, and how codes become numbers.
// Everything is static, so that each file has a copy of its own.

#include "kernels/quantized_search.h"

namespace bf16codecs {
namespace {

// The levels of codes without low bits.
struct SymbolLevels {
  alignas(64) float of[kMostLevels];

  explicit SymbolLevels(const Levels& levels) {
    for (unsigned s = 0; s < kMostLevels; ++s)
      of[s] = levels.family == Family::integers ? Integers(levels).level(s, 0) : levels.table[s];
  }
};

// The levels of floats below the second octave. In the octaves above, products have a larger
// exponent, and nothing else: as bfloat16, each octave adds kOctave to their words.
constexpr int kOctave = 1 << 7;

// They are in the order of their low bits. Where a code has fewer than five, they are repeated:
// what else a byte has above its low bits changes nothing.
struct FloatLevels {
  alignas(64) float subnormal[32], normal[32];

  explicit FloatLevels(const Levels& levels) {
    const Floats floats(levels);
    for (unsigned i = 0; i < 32; ++i) {
      const unsigned low = i & ((1u << levels.low_bits) - 1);
      subnormal[i] = floats.level(0, low);
      normal[i] = floats.level(1, low);
    }
  }
};

// A code of integers, with its five bits of a symbol from bit `end` on and its low bits below: the
// number x = code 2^k, with k = end - b. Put into the mantissa of 2^(23 - k), it makes the
// number 2^(23 - k) + code. Subtracting `zero`, which is 2^(23 - k) + 16 2^b, gives the level,
// exactly. The code 0, for -0, is a case by itself.
struct IntegerWords {
  static constexpr unsigned kEnd = 11;  // in words, the symbol is at the top

  uint32_t magic;  // 2^(23 - k)
  float zero;

  explicit IntegerWords(const Levels& levels, unsigned end = kEnd)
      : magic((150 - end + levels.low_bits) << 23),
        zero(float_of(magic) + static_cast<float>(16 << levels.low_bits)) {}
};

// Where a part of the low bits belongs: `shift` bits up from where it is in a byte, in `mask`. The
// low bits of a code end below bit `end`.
struct LowPlace {
  int shift;
  int mask;

  LowPlace(const LowBits& low, unsigned end)
      : shift(static_cast<int>(end) - static_cast<int>(low.from + low.bits)),
        mask(static_cast<int>(((1u << low.bits) - 1) << (end - low.bits))) {}
};

// Calls function.operator()<formula>().
template <typename Function>
BF16CODECS_INLINE void with_formula(Formula formula, Function function) {
  switch (formula) {
    case Formula::sum:
      return function.template operator()<Formula::sum>();
    case Formula::rounded_sum:
      return function.template operator()<Formula::rounded_sum>();
    case Formula::difference:
      return function.template operator()<Formula::difference>();
    default:
      return function.template operator()<Formula::product>();
  }
}

// The scales of some items as an instruction set's Numbers and, but for products, their offsets.
template <typename Numbers, Formula kFormula>
struct FactorsOf {
  Numbers scales, offsets;
};
template <typename Numbers>
struct FactorsOf<Numbers, Formula::product> {
  Numbers scales;
};

// Calls load(numbers) for scales and, but for products, for offsets.
template <Formula kFormula, typename Load>
BF16CODECS_INLINE auto load_factors(const ScaleRuns& runs, Load load) {
  FactorsOf<decltype(load(runs.scales)), kFormula> of;
  of.scales = load(runs.scales);
  if constexpr (kFormula != Formula::product) of.offsets = load(runs.offsets);
  return of;
}

// The words of 32 products of levels and a run's scale, or of sums with its offset.
template <Formula kFormula, Precision kPrecision, Container kContainer>
BF16CODECS_INLINE void multiply_levels(const float levels[32], const ScaleRuns& runs, size_t r,
                                       uint8_t words[64]) {
  const float scale = runs.scales[r], offset = kFormula == Formula::product ? 0 : runs.offsets[r];
  for (unsigned i = 0; i < 32; ++i) {
    const float value = kFormula == Formula::product
                            ? rounded<kPrecision>(levels[i] * scale)
                            : with_offset<kFormula, kPrecision>(levels[i], scale, offset);
    store_item<kContainer>(value, words + 2 * i);
  }
}

// Where codes are. Without low bits, what is packed is not read.
struct Codes {
  const uint8_t* symbols;
  const uint8_t* packed[2];

  BF16CODECS_INLINE Codes from(size_t i) const {
    return {symbols + i, {packed[0] + i, packed[1] + i}};
  }
};

}  // namespace
}  // namespace bf16codecs
