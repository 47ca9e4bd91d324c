#pragma once

// The loops of quantized.h. Each file that includes this has a copy of its own, compiled for its
// instruction set: so nothing here is an inline function of a library. Conditions are selections
// between two results, which compilers make vectors of.

#include <bit>
#include <cstring>

#include "kernels/kernels.h"
#include "kernels/quantized.h"
#include "kernels/quantized_items.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace bf16codecs {
namespace {

// 2^e, for -126 <= e <= 127.
BF16CODECS_INLINE float power_of_two(int e) {
  return float_of(static_cast<uint32_t>(e + 127) << 23);
}

// The nearest integer, ties to even, of |x| < 2^22: the sum has no bits for fractions.
constexpr float kIntegers = 12582912;  // 1.5 x 2^23
BF16CODECS_INLINE float to_integer(float x) {
  return (x + kIntegers) - kIntegers;
}

// x, or 0 where its conversion to an integer might be undefined: such an x is near no level.
BF16CODECS_INLINE float convertible(float x) {
  constexpr float kMost = 1 << 20;
  return magnitude_of(x) < kMost ? x : 0;
}

// binary16 has the numbers of bfloat16 from here on.
constexpr float kLeastOfBoth = 1.0f / (1 << 17);

// From binary16 to bfloat16: the middle of two numbers of bfloat16 is one of binary16, with what is
// rounded to it, and goes to the even one. Below 2^-16, there are no such middles.
BF16CODECS_INLINE float half_step_of_binary16_bfloat16(float magnitude) {
  constexpr float kHalf = 1.0f / (1 << 8), kOfMiddle = 1.0f / (1 << 11);
  constexpr float kLeast = 1.0f / (1 << 25), kLeastMiddle = 1.0f / (1 << 16);
  const float octave = float_of(bits_of(magnitude) & kInfinity);
  const float of_middle = octave * kOfMiddle > kLeast ? octave * kOfMiddle : kLeast;
  const bool is_odd = (bits_of(magnitude) >> 16 & 1) != 0;
  const float half = octave * kHalf + (is_odd ? -of_middle : of_middle);
  return octave < kLeastMiddle ? kLeast : half;
}

// Half the distance of x to the next number of the precision; somewhat more where that saves a
// case, as at powers of two.
template <Precision kPrecision>
BF16CODECS_INLINE float half_step(float magnitude) {
  if constexpr (kPrecision == Precision::binary16_bfloat16)
    return half_step_of_binary16_bfloat16(magnitude);
  constexpr float kBits = kPrecision == Precision::binary32   ? 1.0f / (1 << 24)
                          : kPrecision == Precision::binary16 ? 1.0f / (1 << 11)
                                                              : 1.0f / (1 << 8);
  constexpr float kLeast = 1.0f / (1 << 25);
  const float half = float_of(bits_of(magnitude) & kInfinity) * kBits;
  if constexpr (kPrecision == Precision::binary16) return half > kLeast ? half : kLeast;
  if constexpr (kPrecision == Precision::bfloat16_binary16)
    return magnitude < kLeastOfBoth ? half + kLeast : half;
  return half;
}

// --- levels --------------------------------------------------------------------------------------

// What the loops need of a family: the level of a code, the level nearest to a number, and its
// code, if `is_level` says that there is one.

struct Integers {
  static constexpr bool kHasNeighbours = true;  // as near as items are to their products

  unsigned low_bits;
  int zero;

  explicit Integers(const Levels& levels)
      : low_bits(levels.low_bits), zero(16 << levels.low_bits) {}

  BF16CODECS_INLINE float level(unsigned symbol, unsigned low) const {
    const int code = static_cast<int>((symbol & 31) << low_bits | low);
    return code == 0 ? -0.0f : static_cast<float>(code - zero);
  }
  BF16CODECS_INLINE float nearest(float x) const { return to_integer(x); }
  BF16CODECS_INLINE bool is_level(float magnitude) const {
    return magnitude < static_cast<float>(zero);
  }
  // The code of a level, which has the sign of x.
  BF16CODECS_INLINE unsigned code(float level, float x) const {
    const bool is_negative_zero = bits_of(x) == kSign;
    const int number = static_cast<int>(level) + zero;
    return static_cast<unsigned>(is_negative_zero ? 0 : number);
  }
};

struct Floats {
  static constexpr bool kHasNeighbours = false;

  unsigned mantissa;
  int bias;
  uint32_t least;  // bits of the smallest normal level
  float most, subnormals, subnormal;

  explicit Floats(const Levels& levels)
      : mantissa(levels.low_bits - 1),
        bias(levels.bias),
        least(static_cast<uint32_t>(128 - bias) << 23),
        most(power_of_two(32 - bias)),
        subnormals(power_of_two(bias - 1 + static_cast<int>(mantissa))),
        subnormal(power_of_two(1 - bias - static_cast<int>(mantissa))) {}

  BF16CODECS_INLINE float level(unsigned symbol, unsigned low) const {
    const unsigned s = symbol & 31, p = low & ((1u << mantissa) - 1);
    const int e = static_cast<int>(s > 1 ? s : 1) - bias - static_cast<int>(mantissa);
    const unsigned q = p + (s > 0 ? 1u << mantissa : 0);
    const float magnitude = static_cast<float>(static_cast<int>(q)) * power_of_two(e);
    return float_of(bits_of(magnitude) | (low >> mantissa) << 31);
  }
  // To a multiple of the step of x's octave, or of the subnormals'.
  BF16CODECS_INLINE float nearest(float x) const {
    const uint32_t octave = bits_of(x) & kInfinity;
    const uint32_t step = (octave > least ? octave : least) - (mantissa << 23);
    const float inverse = float_of((254u << 23) - step);
    return to_integer(x * inverse) * float_of(step);
  }
  BF16CODECS_INLINE bool is_level(float magnitude) const { return magnitude < most; }
  BF16CODECS_INLINE unsigned code(float level, float x) const {
    const uint32_t bits = bits_of(level) & ~kSign;
    const uint32_t normal =
        (bits >> (23 - mantissa)) - (static_cast<uint32_t>(127 - bias) << mantissa);
    const float whole = bits < least ? float_of(bits) * subnormals : 0;
    const auto small = static_cast<uint32_t>(static_cast<int>(whole));
    const uint32_t number = bits < least ? small : normal;  // exponent, mantissa
    const uint32_t fraction = number & ((1u << mantissa) - 1);
    return (number >> mantissa) << (mantissa + 1) | (bits_of(x) >> 31) << mantissa | fraction;
  }
};

// The searches always take as many steps, so that compilers unroll them.
struct Table {
  static constexpr bool kHasNeighbours = false;

  float levels[kMostLevels], searched[kMostSearched];

  explicit Table(const Levels& of) {
    constexpr uint32_t kNan = 0x7FC00000;
    for (unsigned i = 0; i < kMostLevels; ++i) levels[i] = of.table[i];
    for (unsigned i = 0; i < kMostSearched; ++i)
      searched[i] = i < of.count ? of.table[i] : float_of(kNan);
  }

  BF16CODECS_INLINE float level(unsigned symbol, unsigned) const { return levels[symbol & 31]; }
  BF16CODECS_INLINE float nearest(float x) const {
    float best = searched[0];
    BF16CODECS_UNROLL16
    for (unsigned i = 1; i < kMostSearched; ++i) {
      best = magnitude_of(x - searched[i]) < magnitude_of(x - best) ? searched[i] : best;
    }
    return best;
  }
  BF16CODECS_INLINE bool is_level(float) const { return true; }
  // Of the levels 0 and -0, the one with the sign of x.
  BF16CODECS_INLINE unsigned code(float level, float x) const {
    const uint32_t exact = level == 0 ? bits_of(x) & kSign : bits_of(level);
    unsigned best = 0;
    BF16CODECS_UNROLL16
    for (unsigned i = 0; i < kMostSearched; ++i) best = bits_of(searched[i]) == exact ? i : best;
    return best;
  }
};

// --- loops ---------------------------------------------------------------------------------------

// Little-endian items of `kSize` bytes.
template <Container kContainer>
constexpr size_t kSize = kContainer == Container::float32 ? 4 : 2;

BF16CODECS_INLINE float load16(uint32_t item) {
  constexpr float kSubnormal = 1.0f / (1 << 24);
  const uint32_t magnitude = item & 0x7FFF;
  const float small = static_cast<float>(static_cast<int>(magnitude)) * kSubnormal;
  const uint32_t special = magnitude >= 0x7C00 ? kInfinity : (112u << 23);
  const uint32_t normal = (magnitude << 13) + special;
  const uint32_t bits = magnitude < 0x400 ? bits_of(small) : normal;
  return float_of((item & 0x8000) << 16 | bits);
}

// Little-endian. (The functions of little_endian.h might be compiled here for all others, too.)
template <typename T>
BF16CODECS_INLINE T load_bytes(const uint8_t* bytes) {
  T value{};
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(&value, bytes, sizeof value);
  } else {
    for (size_t i = 0; i < sizeof value; ++i)
      value = static_cast<T>(value | T{bytes[i]} << (8 * i));
  }
  return value;
}
template <typename T>
BF16CODECS_INLINE void store_bytes(uint8_t* bytes, T value) {
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(bytes, &value, sizeof value);
  } else {
    for (size_t i = 0; i < sizeof value; ++i) bytes[i] = static_cast<uint8_t>(value >> (8 * i));
  }
}

template <Container kContainer>
BF16CODECS_INLINE float load_item(const uint8_t* item) {
  if constexpr (kContainer == Container::float32) return float_of(load_bytes<uint32_t>(item));
  const uint32_t bits = load_bytes<uint16_t>(item);
  if constexpr (kContainer == Container::bfloat16) return float_of(bits << 16);
  return load16(bits);
}

template <Container kContainer>
BF16CODECS_INLINE void store_item(float value, uint8_t* item) {
  const uint32_t bits = item_of<kContainer>(value);
  if constexpr (kContainer == Container::float32) return store_bytes(item, bits);
  store_bytes(item, static_cast<uint16_t>(bits));
}

template <Container kContainer>
void load_as(const uint8_t* items, size_t n, float* values) {
  for (size_t i = 0; i < n; ++i) values[i] = load_item<kContainer>(items + kSize<kContainer> * i);
}

// Positive numbers are in the order of their bits.
ScaleCounts merge_scales(const uint8_t* const planes[], size_t n, Interval magnitudes,
                         float* scales) {
  const uint8_t *const p0 = planes[0], *const p1 = planes[1];
  const uint8_t *const p2 = planes[2], *const p3 = planes[3];
  const uint32_t least = bits_of(magnitudes.low), range = bits_of(magnitudes.high) - least;
  uint32_t zeros = 0, wrong = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t rotated =
        uint32_t{p0[i]} << 24 | uint32_t{p1[i]} << 16 | uint32_t{p2[i]} << 8 | uint32_t{p3[i]};
    const uint32_t bits = rotated >> 1 | rotated << 31;
    scales[i] = float_of(bits);
    const bool is_zero = bits == 0, is_scale = (bits & ~kSign) - least < range;
    zeros += is_zero;
    wrong += !is_zero & !is_scale;
  }
  return {zeros, wrong};
}

void fill(float value, size_t n, float* values) {
  for (size_t i = 0; i < n; ++i) values[i] = value;
}

template <typename Of, Precision kPrecision, Container kContainer, unsigned kParts>
void multiply_as(const Levels& levels, const uint8_t* symbols, const LowBits parts[],
                 const float* scales, size_t n, uint8_t* items) {
  const Of of(levels);
  const uint8_t* const first = kParts > 0 ? parts[0].packed : nullptr;
  const uint8_t* const second = kParts > 1 ? parts[1].packed : nullptr;
  const unsigned first_from = kParts > 0 ? parts[0].from : 0,
                 first_bits = kParts > 0 ? parts[0].bits : 0;
  const unsigned second_from = kParts > 1 ? parts[1].from : 0,
                 second_bits = kParts > 1 ? parts[1].bits : 0;
  const unsigned first_mask = (1u << first_bits) - 1, second_mask = (1u << second_bits) - 1;
  for (size_t i = 0; i < n; ++i) {
    unsigned low = 0;
    if constexpr (kParts > 0) low = static_cast<unsigned>(first[i]) >> first_from & first_mask;
    if constexpr (kParts > 1) {
      low = low << second_bits | (static_cast<unsigned>(second[i]) >> second_from & second_mask);
    }
    const float value = rounded<kPrecision>(of.level(symbols[i], low) * scales[i]);
    store_item<kContainer>(value, items + kSize<kContainer> * i);
  }
}

// Of values that are not finite, no product has the bits.
template <typename Of, Precision kPrecision>
bool quantize_as(const Levels& levels, const float* values, const float* scales, size_t n,
                 const LevelCodes& codes) {
  const Of of(levels);
  uint8_t* const symbols = codes.symbols;
  uint8_t* const lows = codes.low;
  const unsigned low_bits = levels.low_bits;
  const auto mask = static_cast<uint8_t>((1u << low_bits) - 1);
  uint32_t different = 0;
  for (size_t i = 0; i < n; ++i) {
    const float x = convertible(values[i] / scales[i]), nearest = of.nearest(x);
    const bool is_level = of.is_level(magnitude_of(nearest));
    const unsigned code = of.code(is_level ? nearest : 0, is_level ? x : 0);
    const auto symbol = static_cast<uint8_t>(code >> low_bits);
    const auto low = static_cast<uint8_t>(code & mask);
    symbols[i] = symbol;
    lows[i] = low;
    const float product = rounded<kPrecision>(of.level(symbol, low) * scales[i]);
    different |= bits_of(product) ^ bits_of(values[i]);
  }
  return different == 0;
}

Magnitudes magnitudes(const float* values, size_t n) {
  int32_t most = 0;
  uint32_t zeros = 0, negative = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = bits_of(values[i]);
    const auto magnitude = static_cast<int32_t>(bits & ~kSign);
    most = magnitude > most ? magnitude : most;
    zeros += magnitude == 0;
    negative += bits == kSign;
  }
  return {static_cast<uint32_t>(most), zeros, negative};
}

// The scales with which a magnitude between two bounds is a level. Quotients are rounded: the
// interval is made wider by more than that.
BF16CODECS_INLINE Interval scales_of(float least, float most, float level) {
  constexpr float kLess = 1 - 1.0f / (1 << 22), kMore = 1 + 1.0f / (1 << 22);
  const float divisor = level > 0 ? level : 1;
  const float low = least / divisor * kLess, none = float_of(0x7F000000);
  return {level > 0 ? low : none, most / divisor * kMore};
}
BF16CODECS_INLINE bool meets(const Interval& a, const Interval& b) {
  return a.low <= b.high && b.low <= a.high;
}

// All bounds are positive, so that their bits are in the same order, and compilers make vectors of
// the maximum of integers.
template <typename Of, Precision kPrecision>
Interval narrow_as(const Levels& levels, const float* values, size_t n, const Interval& scales) {
  const Of of(levels);
  const Interval all = scales;
  const float middle = all.low + (all.high - all.low) * 0.5f, inverse = 1 / middle;
  const float spread = (all.high - all.low) * 0.5f * inverse;
  auto low = static_cast<int32_t>(bits_of(all.low)), high = static_cast<int32_t>(bits_of(all.high));
  for (size_t i = 0; i < n; ++i) {
    const float magnitude = magnitude_of(values[i]), x = convertible(values[i] * inverse);
    const float level = of.nearest(x), half = half_step<kPrecision>(magnitude);
    const float least = magnitude - half, most = magnitude + half;
    Interval of_value = scales_of(least, most, magnitude_of(level));
    if constexpr (Of::kHasNeighbours) {
      // Near the middle of two integers, either may be right: all scales that one of them allows
      // are left.
      const float other = magnitude_of(x) > magnitude_of(level) ? 1.0f : -1.0f;
      const Interval of_other = scales_of(least, most, magnitude_of(level) + other);
      const bool is_unsure = magnitude_of(x - level) > 0.5f - magnitude_of(x) * spread;
      const bool is_any = meets(of_value, all) || meets(of_other, all);
      of_value.low = is_unsure && is_any ? 0 : of_value.low;
      of_value.high = is_unsure && is_any ? float_of(kInfinity) : of_value.high;
    }
    const bool is_zero = magnitude == 0;
    const auto more = static_cast<int32_t>(bits_of(is_zero ? 0 : of_value.low));
    const auto less = static_cast<int32_t>(bits_of(is_zero ? float_of(kInfinity) : of_value.high));
    low = more > low ? more : low;
    high = less < high ? less : high;
  }
  // Infinity less infinity is a NaN, whose sign depends on the compiler: with either, no number is
  // left.
  if (low > high) return {1, 0};
  return {float_of(static_cast<uint32_t>(low)), float_of(static_cast<uint32_t>(high))};
}

// --- by family and precision ---------------------------------------------------------------------

// Calls function.operator()<precision>().
template <typename Function>
BF16CODECS_INLINE auto with_precision(Precision precision, Function function) {
  switch (precision) {
    case Precision::binary16:
      return function.template operator()<Precision::binary16>();
    case Precision::bfloat16:
      return function.template operator()<Precision::bfloat16>();
    case Precision::binary16_bfloat16:
      return function.template operator()<Precision::binary16_bfloat16>();
    case Precision::bfloat16_binary16:
      return function.template operator()<Precision::bfloat16_binary16>();
    default:
      return function.template operator()<Precision::binary32>();
  }
}

// Calls function.operator()<family, precision>().
template <typename Function>
BF16CODECS_INLINE auto with_family(const Levels& levels, Precision precision, Function function) {
  return with_precision(precision, [&]<Precision kPrecision>() {
    switch (levels.family) {
      case Family::integers:
        return function.template operator()<Integers, kPrecision>();
      case Family::floats:
        return function.template operator()<Floats, kPrecision>();
      default:
        return function.template operator()<Table, kPrecision>();
    }
  });
}

void load(Container container, const uint8_t* items, size_t n, float* values) {
  switch (container) {
    case Container::bfloat16:
      return load_as<Container::bfloat16>(items, n, values);
    case Container::float16:
      return load_as<Container::float16>(items, n, values);
    default:
      return load_as<Container::float32>(items, n, values);
  }
}

// Each container has only some of the precisions.
template <typename Of, unsigned kParts>
auto multiply_for(Precision precision, Container container) {
  if (container == Container::bfloat16) {
    return precision == Precision::bfloat16
               ? multiply_as<Of, Precision::bfloat16, Container::bfloat16, kParts>
               : multiply_as<Of, Precision::binary16_bfloat16, Container::bfloat16, kParts>;
  }
  if (container == Container::float16)
    return multiply_as<Of, Precision::binary16, Container::float16, kParts>;
  return precision == Precision::binary32
             ? multiply_as<Of, Precision::binary32, Container::float32, kParts>
         : precision == Precision::binary16
             ? multiply_as<Of, Precision::binary16, Container::float32, kParts>
             : multiply_as<Of, Precision::bfloat16, Container::float32, kParts>;
}

template <typename Of>
auto multiply_for(Precision precision, Container container, unsigned parts) {
  return parts == 0   ? multiply_for<Of, 0>(precision, container)
         : parts == 1 ? multiply_for<Of, 1>(precision, container)
                      : multiply_for<Of, 2>(precision, container);
}

// What is rounded to bfloat16 and then to binary16 is made as bfloat16, and then converted: loops
// of its own took another 90 KB of each instruction set.
constexpr bool is_converted(Precision precision) {
  return precision == Precision::bfloat16_binary16;
}
BF16CODECS_INLINE size_t items_of_runs(const ScaleRuns* runs, size_t n_runs) {
  size_t n = 0;
  for (size_t r = 0; r < n_runs; ++r) n += runs[r].length * runs[r].count;
  return n;
}
void convert_to_binary16(size_t n, uint8_t* items) {
  size_t i = 0;
#if defined(__AVX512F__)  // what compilers make of the loop takes 0.3 ns an item
  for (; i + 16 <= n; i += 16) {
    auto* const at = reinterpret_cast<__m256i*>(items + 2 * i);
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at)), 16);
    constexpr int kToNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm256_storeu_si256(at, _mm512_cvtps_ph(_mm512_castsi512_ps(bits), kToNearest));
  }
#endif
  for (; i < n; ++i) {
    const float value = to_binary16(load_item<Container::bfloat16>(items + 2 * i));
    store_item<Container::float16>(value, items + 2 * i);
  }
}

void multiply(const Levels& levels, Precision precision, Container container,
              const uint8_t* symbols, const LowBits low[], unsigned parts, const float* scales,
              size_t n, uint8_t* items) {
  if (is_converted(precision)) {
    multiply(levels, Precision::bfloat16, Container::bfloat16, symbols, low, parts, scales, n,
             items);
    return convert_to_binary16(n, items);
  }
  const auto function =
      levels.family == Family::integers ? multiply_for<Integers>(precision, container, parts)
      : levels.family == Family::floats ? multiply_for<Floats>(precision, container, parts)
                                        : multiply_for<Table, 0>(precision, container);
  function(levels, symbols, low, scales, n, items);
}

bool quantize(const Levels& levels, Precision precision, const float* values, const float* scales,
              size_t n, const LevelCodes& codes) {
  return with_family(levels, precision, [&]<typename Of, Precision kPrecision>() {
    return quantize_as<Of, kPrecision>(levels, values, scales, n, codes);
  });
}

Interval narrow(const Levels& levels, Precision precision, const float* values, size_t n,
                const Interval& scales) {
  return with_family(levels, precision, [&]<typename Of, Precision kPrecision>() {
    return narrow_as<Of, kPrecision>(levels, values, n, scales);
  });
}

}  // namespace
}  // namespace bf16codecs

#include "kernels/quantized_offset_loops.h"

// With functions for runs.
#define BF16CODECS_QUANTIZED_KERNELS(least, runs)  \
  {.load = load,                                   \
   .scales = merge_scales,                         \
   .fill = fill,                                   \
   .multiply = multiply,                           \
   .least_run = least,                             \
   .multiply_runs = runs,                          \
   .quantize = quantize,                           \
   .multiply_and_add = multiply_and_add,           \
   .quantize_with_offsets = quantize_with_offsets, \
   .magnitudes = magnitudes,                       \
   .narrow = narrow,                               \
   .measure = measure,                             \
   .start = start,                                 \
   .search = search,                               \
   .transpose_runs = transpose_runs,               \
   .find_line_levels = find_line_levels,           \
   .bound_scales = bound_scales,                   \
   .bound_lines = bound_lines,                     \
   .check_lines = check_lines,                     \
   .find_zeros = find_zeros,                       \
   .find_simplest = find_simplest,                 \
   .quantize_lines = quantize_lines,               \
   .split_codes = split_codes}
