#pragma once

// The loops of integers with offsets. quantized_loops.h includes this behind what it needs.

namespace bf16codecs {
namespace {

// Calls function.operator()<formula, precision>().
template <typename Function>
BF16CODECS_INLINE auto with_formula(Formula formula, Precision precision, Function function) {
  return with_precision(precision, [&]<Precision kPrecision>() {
    switch (formula) {
      case Formula::difference:
        return function.template operator()<Formula::difference, kPrecision>();
      case Formula::rounded_sum:
        return function.template operator()<Formula::rounded_sum, kPrecision>();
      default:
        return function.template operator()<Formula::sum, kPrecision>();
    }
  });
}

void load_levels(const Levels& levels, const uint8_t* symbols, const LowBits low[], unsigned parts,
                 size_t n, float* numbers) {
  const Integers of(levels);
  constexpr LowBits kNone{nullptr, 0, 0};
  const LowBits first = parts > 0 ? low[0] : kNone, second = parts > 1 ? low[1] : kNone;
  const unsigned first_mask = (1u << first.bits) - 1, second_mask = (1u << second.bits) - 1;
  for (size_t i = 0; i < n && parts == 0; ++i) numbers[i] = of.level(symbols[i], 0);
  for (size_t i = 0; i < n && parts == 1; ++i)
    numbers[i] = of.level(symbols[i], unsigned{first.packed[i]} >> first.from & first_mask);
  for (size_t i = 0; i < n && parts == 2; ++i) {
    const unsigned upper = unsigned{first.packed[i]} >> first.from & first_mask;
    const unsigned lower = unsigned{second.packed[i]} >> second.from & second_mask;
    numbers[i] = of.level(symbols[i], upper << second.bits | lower);
  }
}

template <Container kContainer>
void store_as(const float* values, size_t n, uint8_t* items) {
  for (size_t i = 0; i < n; ++i) store_item<kContainer>(values[i], items + kSize<kContainer> * i);
}

void store(Container container, const float* values, size_t n, uint8_t* items) {
  switch (container) {
    case Container::bfloat16:
      return store_as<Container::bfloat16>(values, n, items);
    case Container::float16:
      return store_as<Container::float16>(values, n, items);
    default:
      return store_as<Container::float32>(values, n, items);
  }
}

void multiply_and_add(const Levels& levels, Precision precision, Container container,
                      const uint8_t* symbols, const LowBits low[], unsigned parts,
                      const float* scales, const float* offsets, size_t n, uint8_t* items) {
  constexpr size_t kStrip = 512;
  float values[kStrip];
  const size_t width = container == Container::float32 ? 4 : 2;
  for (size_t i = 0; i < n; i += kStrip) {
    const size_t count = n - i < kStrip ? n - i : kStrip;
    LowBits at[2] = {};
    for (unsigned p = 0; p < parts; ++p) at[p] = {low[p].packed + i, low[p].from, low[p].bits};
    load_levels(levels, symbols + i, at, parts, count, values);
    with_formula(levels.formula, precision, [&]<Formula kFormula, Precision kPrecision>() {
      for (size_t j = 0; j < count; ++j) {
        values[j] = with_offset<kFormula, kPrecision>(values[j], scales[i + j], offsets[i + j]);
      }
    });
    store(container, values, count, items + width * i);
  }
}

template <Formula kFormula, Precision kPrecision>
bool quantize_with_offsets_as(const Levels& levels, const float* values, const float* scales,
                              const float* offsets, size_t n, const LevelCodes& codes) {
  const Integers of(levels);
  uint8_t* const symbols = codes.symbols;
  uint8_t* const lows = codes.low;
  const unsigned low_bits = levels.low_bits;
  const auto mask = static_cast<uint8_t>((1u << low_bits) - 1);
  uint32_t different = 0;
  for (size_t i = 0; i < n; ++i) {
    const float x = kFormula == Formula::difference ? values[i] / scales[i] + offsets[i]
                                                    : (values[i] - offsets[i]) / scales[i];
    const float nearest = of.nearest(convertible(x));
    const bool is_level = of.is_level(magnitude_of(nearest));
    // Never -0: that is of no use with an offset.
    const unsigned code = of.code(is_level ? nearest : 0, 0.0f);
    const auto symbol = static_cast<uint8_t>(code >> low_bits);
    const auto low = static_cast<uint8_t>(code & mask);
    symbols[i] = symbol;
    lows[i] = low;
    const float value =
        with_offset<kFormula, kPrecision>(of.level(symbol, low), scales[i], offsets[i]);
    different |= bits_of(value) ^ bits_of(values[i]);
  }
  return different == 0;
}

bool quantize_with_offsets(const Levels& levels, Precision precision, const float* values,
                           const float* scales, const float* offsets, size_t n,
                           const LevelCodes& codes) {
  return with_formula(levels.formula, precision, [&]<Formula kFormula, Precision kPrecision>() {
    return quantize_with_offsets_as<kFormula, kPrecision>(levels, values, scales, offsets, n,
                                                          codes);
  });
}

}  // namespace
}  // namespace bf16codecs
