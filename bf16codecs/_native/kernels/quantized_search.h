#pragma once

// The loops of the search for the scales of many groups at once (quantized.h): for groups that are
// as usual, whose values are then quantised in the same pass that checks the scale. Neighbours that
// may both be right, and scales that are not the simplest ones, are left to the slower search.

#include "kernels/quantized_loops.h"

namespace bf16codecs {
namespace {

// It stands for the level 0, which has no reciprocal, and is smaller than all others.
constexpr float kNoLevel = 1.0f / (1 << 20);

constexpr uint32_t kOne = 127u << 23;  // the bits of 1

// --- levels --------------------------------------------------------------------------------------

// Each family finds the level that is nearest to x >= 0 (a table, to x of either sign), and the
// level and code of x of either sign. A code with the sign bit set means that x has no level. For
// numbers that are too large, infinite or NaN, a family may find any level: the caller multiplies
// out, and sees that it is wrong.

struct LevelCode {
  float level;
  uint32_t code;
};

// The integer nearest to x in a sum x + kIntegers: it is the sum's last bits.
BF16CODECS_INLINE uint32_t integer_in(float sum) {
  return bits_of(sum) - 0x4B400000;
}
BF16CODECS_INLINE float with_sign_of(float x, float magnitude) {
  return float_of(bits_of(magnitude) | (bits_of(x) & kSign));
}

template <typename Of>
struct Searched;

template <>
struct Searched<Integers> {
  static constexpr bool kIsSymmetric = true;
  static constexpr bool kIsInteger = true;
  static constexpr bool kIsTable = false;

  uint32_t zero;
  float most;

  explicit Searched(const Levels& levels)
      : zero(16u << levels.low_bits), most(static_cast<float>(16 << levels.low_bits)) {}

  BF16CODECS_INLINE float nearest(float x) const { return to_integer(x); }
  BF16CODECS_INLINE LevelCode find(float x) const {
    const float sum = x + kIntegers, level = with_sign_of(x, sum - kIntegers);
    const uint32_t code = bits_of(x) == kSign ? 0 : integer_in(sum) + zero;
    return {level, magnitude_of(level) < most ? code : kSign};
  }
};

template <>
struct Searched<Floats> {
  static constexpr bool kIsSymmetric = true;
  static constexpr bool kIsInteger = false;
  static constexpr bool kIsTable = false;

  uint32_t mantissa, least;  // bits of a mantissa, and those of the smallest normal level
  float most;

  explicit Searched(const Levels& levels)
      : mantissa(levels.low_bits - 1), least(Floats(levels).least), most(Floats(levels).most) {}

  BF16CODECS_INLINE uint32_t octave(float x) const {
    const uint32_t bits = bits_of(x) & kInfinity;
    return bits > least ? bits : least;
  }
  BF16CODECS_INLINE float nearest(float x) const {
    const uint32_t step = octave(x) - (mantissa << 23);
    const float sum = x * float_of((254u << 23) - step) + kIntegers;
    return (sum - kIntegers) * float_of(step);
  }
  // Exponent and mantissa are a number: an octave's first one and steps from there on.
  BF16CODECS_INLINE LevelCode find(float x) const {
    const float magnitude = magnitude_of(x);
    const uint32_t of_octave = octave(x), step = of_octave - (mantissa << 23);
    const float sum = magnitude * float_of((254u << 23) - step) + kIntegers;
    const float level = (sum - kIntegers) * float_of(step);
    const uint32_t number = ((of_octave - least) >> (23 - mantissa)) + integer_in(sum);
    const uint32_t exponent = number >> mantissa << mantissa, sign = bits_of(x) >> 31 << mantissa;
    const uint32_t code = (number + exponent) | sign;
    return {with_sign_of(x, level), level < most ? code : kSign};
  }
};

// Levels in order, and the middles between them. 0 and -0 are one.
template <>
struct Searched<Table> {
  static constexpr bool kIsSymmetric = false;
  static constexpr bool kIsInteger = false;
  static constexpr bool kIsTable = true;

  float levels[kMostSearched] = {}, middles[kMostSearched] = {};
  uint32_t codes[kMostSearched] = {}, zero = kSign, negative_zero = kSign;

  explicit Searched(const Levels& of) {
    unsigned count = 0;
    for (unsigned i = 0; i < of.count && i < kMostSearched; ++i) {
      const float level = of.table[i];
      if (level == 0) (bits_of(level) == 0 ? zero : negative_zero) = i;
      unsigned at = count;
      bool is_new = true;
      for (unsigned j = 0; j < count; ++j) is_new = is_new && levels[j] != level;
      if (!is_new) continue;
      for (; at > 0 && levels[at - 1] > level; --at) {
        levels[at] = levels[at - 1], codes[at] = codes[at - 1];
      }
      levels[at] = level, codes[at] = i;
      ++count;
    }
    for (unsigned i = 0; i + 1 < count; ++i) {
      middles[i + 1] = levels[i] + (levels[i + 1] - levels[i]) * 0.5f;
    }
    for (unsigned i = count; i < kMostSearched; ++i) {
      levels[i] = levels[0], codes[i] = codes[0], middles[i] = float_of(kInfinity);
    }
  }

  BF16CODECS_INLINE float nearest(float x) const {
    float best = levels[0];
    BF16CODECS_UNROLL16
    for (unsigned i = 1; i < kMostSearched; ++i) best = x >= middles[i] ? levels[i] : best;
    return best;
  }
  BF16CODECS_INLINE LevelCode find(float x) const {
    float best = levels[0];
    uint32_t code = codes[0];
    BF16CODECS_UNROLL16
    for (unsigned i = 1; i < kMostSearched; ++i) {
      best = x >= middles[i] ? levels[i] : best;
      code = x >= middles[i] ? codes[i] : code;
    }
    const uint32_t of_zero = bits_of(x) >> 31 != 0 ? negative_zero : zero;
    const uint32_t sign = best == 0 ? bits_of(x) & kSign : 0;
    return {float_of(bits_of(best) | sign), best == 0 ? of_zero : code};
  }
};

// --- one value -----------------------------------------------------------------------------------

struct Measured {
  int32_t most;
  uint32_t least;
  int32_t balance;

  BF16CODECS_INLINE void add(float value) {
    const uint32_t bits = bits_of(value), magnitude = bits & ~kSign, less = magnitude - 1;
    const auto positive = static_cast<int32_t>(magnitude);
    const int32_t of_zero = bits != 0 ? 1 : -1;
    most = positive > most ? positive : most;
    least = less < least ? less : least;
    balance += magnitude != 0 ? 0 : of_zero;
  }
};

// The products that are rounded to a magnitude: between its middles to the next numbers, of which
// ties to even has both or neither. The ends are moved by 2^-22 or more, which is more than what
// rounding takes of quotients: without the middles, out or in. (Middles are simple numbers. Where
// those of odd numbers were left in, a third of the groups of INT4 had no scale at first.)
template <Precision kPrecision>
BF16CODECS_INLINE Interval products_of(float magnitude) {
  const uint32_t bits = bits_of(magnitude);
  if constexpr (kPrecision == Precision::binary32) return {float_of(bits - 4), float_of(bits + 4)};
  if constexpr (kPrecision == Precision::bfloat16) {
    const uint32_t less = bits >> 13 & 8;  // of an odd number
    return {float_of(bits - 0x8004 + less), float_of(bits + 0x8004 - less)};
  }
  constexpr float kLess = 1 - 1.0f / (1 << 22), kMore = 1 + 1.0f / (1 << 22);
  constexpr bool kIsOfBinary16 = kPrecision == Precision::binary16;
  constexpr float kOdd = 1 - 1.0f / (kIsOfBinary16 ? 1 << 9 : 1 << 11);
  float half = half_step<kPrecision>(magnitude);
  half = (bits >> (kIsOfBinary16 ? 13 : 16) & 1) != 0 ? half * kOdd : half;
  return {(magnitude - half) * kLess, (magnitude + half) * kMore};
}

// All bounds are positive, so that their bits are in the same order.
struct Bounds {
  int32_t low, high;

  // Values near the middle of two integers say nothing.
  template <typename Of, Precision kPrecision>
  BF16CODECS_INLINE void add(const Of& of, float value, float inverse, float spread) {
    const float magnitude = magnitude_of(value),
                x = (Of::kIsSymmetric ? magnitude : value) * inverse;
    const float level = magnitude_of(of.nearest(x));
    bool is_unsure = false;
    if constexpr (Of::kIsInteger) is_unsure = magnitude_of(x - level) > 0.5f - x * spread;
    add<kPrecision>(magnitude, level, is_unsure);
  }
  // The level's magnitude; it says nothing if it is not sure.
  template <Precision kPrecision>
  BF16CODECS_INLINE void add(float magnitude, float level, bool is_unsure) {
    const float reciprocal = 1 / (level > kNoLevel ? level : kNoLevel);
    const Interval products = products_of<kPrecision>(magnitude);
    const auto of_least = static_cast<int32_t>(bits_of(products.low * reciprocal));
    const auto of_largest = static_cast<int32_t>(bits_of(products.high * reciprocal));
    const bool is_nothing = is_unsure || magnitude == 0;
    const int32_t least = is_nothing ? 0 : of_least;
    const int32_t largest = is_nothing ? static_cast<int32_t>(kInfinity) : of_largest;
    low = least > low ? least : low;
    high = largest < high ? largest : high;
  }
};

// Returns the code of a value, or the sign bit alone if the product is not the value.
template <Precision kPrecision>
BF16CODECS_INLINE uint32_t code_of(const LevelCode& found, float value, float scale) {
  const float product = rounded<kPrecision>(found.level * scale);
  return bits_of(product) == bits_of(value) ? found.code : kSign;
}

// --- tables --------------------------------------------------------------------------------------

// The levels and codes of n values, a multiple of kRunUnit: of all families, those of tables take
// the longest to find, and are kept from one pass to the next.
#if defined(__AVX512F__)
// By halves, in registers: that took NF4 from 2.0 to 1.3 ns a value.
void find_levels(const Searched<Table>& table, const float* values, size_t n, float inverse,
                 float* levels, uint32_t* codes) {
  const __m512 middles = _mm512_loadu_ps(table.middles), all = _mm512_loadu_ps(table.levels);
  const __m512i all_codes = _mm512_loadu_si512(table.codes);
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(kSign));
  const __m512i zero = _mm512_set1_epi32(static_cast<int>(table.zero));
  const __m512i negative_zero = _mm512_set1_epi32(static_cast<int>(table.negative_zero));
  for (size_t i = 0; i < n; i += 16) {
    const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(values + i), _mm512_set1_ps(inverse));
    __m512i at = _mm512_setzero_si512();
    BF16CODECS_UNROLL
    for (int step = 8; step != 0; step /= 2) {
      const __m512i next = _mm512_or_si512(at, _mm512_set1_epi32(step));
      const __m512 middle = _mm512_permutexvar_ps(next, middles);
      at = _mm512_mask_mov_epi32(at, _mm512_cmp_ps_mask(x, middle, _CMP_GE_OQ), next);
    }
    const __m512 level = _mm512_permutexvar_ps(at, all);
    const __m512i code = _mm512_permutexvar_epi32(at, all_codes);
    const __mmask16 is_zero = _mm512_cmp_ps_mask(level, _mm512_setzero_ps(), _CMP_EQ_OQ);
    const __m512i of_x = _mm512_and_si512(_mm512_castps_si512(x), sign);
    const __mmask16 is_negative = _mm512_test_epi32_mask(of_x, of_x);
    const __m512i of_zero = _mm512_mask_mov_epi32(zero, is_negative, negative_zero);
    _mm512_storeu_ps(levels + i,
                     _mm512_castsi512_ps(_mm512_mask_or_epi32(_mm512_castps_si512(level), is_zero,
                                                              _mm512_castps_si512(level), of_x)));
    _mm512_storeu_si512(codes + i, _mm512_mask_mov_epi32(code, is_zero, of_zero));
  }
}
#elif defined(__AVX2__)
void find_levels(const Searched<Table>& table, const float* values, size_t n, float inverse,
                 float* levels, uint32_t* codes) {
  const auto all = [](float x) { return _mm256_set1_ps(x); };
  const auto bits = [](__m256 of, int mask) {
    return _mm256_and_si256(_mm256_castps_si256(of), _mm256_set1_epi32(mask));
  };
  float even[8], odd[8];  // middles after each second level
  for (unsigned i = 0; i < 8; ++i) {
    even[i] = table.middles[(2 * i + 2) % kMostSearched];
    odd[i] = table.middles[2 * i + 1];
  }
  const __m256 evens = _mm256_loadu_ps(even), odds = _mm256_loadu_ps(odd);
  const __m256 low = _mm256_loadu_ps(table.levels), high = _mm256_loadu_ps(table.levels + 8);
  const auto* const of_levels = reinterpret_cast<const float*>(table.codes);
  const __m256 low_codes = _mm256_loadu_ps(of_levels), high_codes = _mm256_loadu_ps(of_levels + 8);
  const __m256 zero = all(float_of(table.zero)), negative_zero = all(float_of(table.negative_zero));
  const __m256 fourth = all(table.middles[4]), eighth = all(table.middles[8]);
  const __m256 twelfth = all(table.middles[12]), sign = all(-0.0f);
  for (size_t i = 0; i < n; i += 8) {
    const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(values + i), all(inverse));
    const auto reaches = [x](__m256 middle) { return _mm256_cmp_ps(x, middle, _CMP_GE_OQ); };
    const __m256 upper = reaches(eighth);
    const __m256 quarter = reaches(_mm256_blendv_ps(fourth, twelfth, upper));
    __m256i at = _mm256_or_si256(bits(upper, 8), bits(quarter, 4));
    at = _mm256_or_si256(
        at, bits(reaches(_mm256_permutevar8x32_ps(evens, _mm256_srli_epi32(at, 1))), 2));
    at = _mm256_or_si256(
        at, bits(reaches(_mm256_permutevar8x32_ps(odds, _mm256_srli_epi32(at, 1))), 1));
    const auto look_up = [at, upper](__m256 first, __m256 second) {
      return _mm256_blendv_ps(_mm256_permutevar8x32_ps(first, at),
                              _mm256_permutevar8x32_ps(second, at), upper);
    };
    const __m256 level = look_up(low, high);
    const __m256 is_zero = _mm256_cmp_ps(level, _mm256_setzero_ps(), _CMP_EQ_OQ);
    const __m256 of_zero = _mm256_blendv_ps(zero, negative_zero, x);  // by its sign
    const __m256 signs = _mm256_and_ps(_mm256_and_ps(x, sign), is_zero);
    _mm256_storeu_ps(levels + i, _mm256_or_ps(level, signs));
    _mm256_storeu_ps(reinterpret_cast<float*>(codes + i),
                     _mm256_blendv_ps(look_up(low_codes, high_codes), of_zero, is_zero));
  }
}
#else
void find_levels(const Searched<Table>& table, const float* values, size_t n, float inverse,
                 float* __restrict levels, uint32_t* __restrict codes) {
  const Searched<Table> copy = table;  // which no store may change
  for (size_t i = 0; i < n; ++i) {
    const LevelCode found = copy.find(values[i] * inverse);
    levels[i] = found.level;
    codes[i] = found.code;
  }
}
#endif

// --- all values ----------------------------------------------------------------------------------

// Lengths are multiples of kRunUnit, for which compilers make one loop only.
BF16CODECS_INLINE size_t padded(size_t length) {
  return (length + kRunUnit - 1) / kRunUnit * kRunUnit;
}

void measure_row(const float* values, size_t groups, const GroupNumbers& numbers) {
  int32_t* __restrict const most = numbers.most;
  uint32_t* __restrict const least = numbers.least;
  int32_t* __restrict const balance = numbers.balance;
  for (size_t g = 0; g < groups; ++g) {
    Measured measured{most[g], least[g], balance[g]};
    measured.add(values[g]);
    most[g] = measured.most;
    least[g] = measured.least;
    balance[g] = measured.balance;
  }
}

void measure(const GroupedValues& of, const GroupNumbers& numbers) {
  for (size_t g = 0; g < of.groups; ++g) {
    numbers.most[g] = 0;
    numbers.least[g] = 0xFFFFFFFF;
    numbers.balance[g] = 0;
  }
  for (size_t r = 0; r < of.rows; ++r) measure_row(of.values + r * of.groups, of.groups, numbers);
  for (size_t r = 0; r < of.n_runs; ++r) {
    const GroupRun run = of.runs[r];
    const float* const values = of.values + run.offset;
    const size_t g = run.group, n = padded(run.length);
    Measured padding{}, measured{numbers.most[g], numbers.least[g], numbers.balance[g]};
    padding.add(values[0]);
    for (size_t i = 0; i < n; ++i) measured.add(values[i]);
    numbers.most[g] = measured.most;
    numbers.least[g] = measured.least;
    numbers.balance[g] = measured.balance - padding.balance * static_cast<int32_t>(n - run.length);
  }
}

// Where a group has no such magnitude, or no scale near it is possible, its interval ends at 0.
void start(size_t groups, const Guess& guess, float error, const GroupNumbers& numbers) {
  constexpr float kLeast = 0x1p-99f, kMost = 0x1p89f;  // scales may be twice as small or large
  int32_t* __restrict const lows = numbers.low;
  int32_t* __restrict const highs = numbers.high;
  const bool is_least = guess.is_least;
  const float share = 1 / guess.level, less = 1 - error, more = 1 + error;
  for (size_t g = 0; g < groups; ++g) {
    const auto most = static_cast<uint32_t>(numbers.most[g]);
    const uint32_t magnitude = is_least ? numbers.least[g] + 1 : most;
    const float middle = float_of(most < kInfinity ? magnitude : 0) * share;
    const float low = middle * less, high = middle * more;
    const float possible = low >= kLeast ? high : 0;
    lows[g] = static_cast<int32_t>(bits_of(low));
    highs[g] = static_cast<int32_t>(low < kMost ? bits_of(possible) : 0);
  }
}

void find_middles(size_t groups, const GroupNumbers& numbers) {
  float* __restrict const inverse = numbers.inverse;
  float* __restrict const spread = numbers.spread;
  for (size_t g = 0; g < groups; ++g) {
    const float low = float_of(static_cast<uint32_t>(numbers.low[g]));
    const float high = float_of(static_cast<uint32_t>(numbers.high[g]));
    const float half = (high - low) * 0.5f;
    inverse[g] = 1 / (low + half);
    spread[g] = half * inverse[g];
  }
}

template <typename Of, Precision kPrecision>
BF16CODECS_INLINE void narrow_row(const Of& levels, const float* values, size_t groups,
                                  const GroupNumbers& numbers) {
  int32_t* __restrict const low = numbers.low;
  int32_t* __restrict const high = numbers.high;
  for (size_t g = 0; g < groups; ++g) {
    Bounds bounds{low[g], high[g]};
    bounds.add<Of, kPrecision>(levels, values[g], numbers.inverse[g], numbers.spread[g]);
    low[g] = bounds.low;
    high[g] = bounds.high;
  }
}

// Narrows the intervals by at most `most` values of each run, and of each column.
template <typename Of, Precision kPrecision>
void narrow_all(const Levels& of_family, const GroupedValues& of, size_t most,
                const GroupNumbers& numbers, const FoundCodes& found) {
  const Of levels(of_family);
  for (size_t r = 0; r < of.rows && r < most; ++r) {
    narrow_row<Of, kPrecision>(levels, of.values + r * of.groups, of.groups, numbers);
  }
  for (size_t r = 0; r < of.n_runs; ++r) {
    const GroupRun run = of.runs[r];
    const float* const values = of.values + run.offset;
    const float inverse = numbers.inverse[run.group], spread = numbers.spread[run.group];
    Bounds bounds{numbers.low[run.group], numbers.high[run.group]};
    const size_t n = padded(run.length < most ? run.length : most);
    if constexpr (Of::kIsTable) {
      float* const of_values = found.levels + run.offset;
      find_levels(levels, values, n, inverse, of_values, found.codes + run.offset);
      for (size_t i = 0; i < n; ++i) {
        bounds.add<kPrecision>(magnitude_of(values[i]), magnitude_of(of_values[i]), false);
      }
    } else {
      for (size_t i = 0; i < n; ++i) bounds.add<Of, kPrecision>(levels, values[i], inverse, spread);
    }
    numbers.low[run.group] = bounds.low;
    numbers.high[run.group] = bounds.high;
  }
}

// The number of an interval whose significand has the most zeros at its end: the bits that the
// bounds have in common, then a one.
BF16CODECS_INLINE uint32_t simplest_of(uint32_t low, uint32_t high) {
  uint32_t below = (low - 1) ^ high;
  below |= below >> 1;
  below |= below >> 2;
  below |= below >> 4;
  below |= below >> 8;
  below |= below >> 16;
  return high & ~(below >> 1);
}

// Integers have no -0: it comes from a scale that is negative.
void choose(bool has_negative, size_t groups, const GroupNumbers& numbers) {
  float* __restrict const scales = numbers.scale;
  float* __restrict const inverses = numbers.inverse;
  uint32_t* __restrict const codes = numbers.codes;
  const int32_t never = has_negative ? 0 : INT32_MAX;
  for (size_t g = 0; g < groups; ++g) {
    const auto low = static_cast<uint32_t>(numbers.low[g]);
    const auto high = static_cast<uint32_t>(numbers.high[g]);
    const bool is_any = numbers.low[g] <= numbers.high[g];
    const uint32_t sign = numbers.balance[g] > never ? kSign : 0;
    const uint32_t scale = simplest_of(low, high) | sign;
    scales[g] = float_of(is_any ? scale : 0);
    inverses[g] = 1 / float_of(is_any ? scale : kOne);
    codes[g] = is_any ? 0 : kSign;
  }
}

template <typename Of, Precision kPrecision>
BF16CODECS_INLINE void quantize_row(const Of& levels, const float* values, size_t groups,
                                    const GroupNumbers& numbers, uint32_t* codes) {
  uint32_t* __restrict const of_groups = numbers.codes;
  uint32_t* __restrict const of_values = codes;
  for (size_t g = 0; g < groups; ++g) {
    const LevelCode level = levels.find(values[g] * numbers.inverse[g]);
    const uint32_t code = code_of<kPrecision>(level, values[g], numbers.scale[g]);
    of_values[g] = code;
    of_groups[g] |= code;
  }
}

template <typename Of, Precision kPrecision>
void quantize_all(const Levels& of_family, const GroupedValues& of, const GroupNumbers& numbers,
                  const FoundCodes& found) {
  const Of levels(of_family);
  for (size_t r = 0; r < of.rows; ++r) {
    const size_t first = r * of.groups;
    quantize_row<Of, kPrecision>(levels, of.values + first, of.groups, numbers,
                                 found.codes + first);
  }
  for (size_t r = 0; r < of.n_runs; ++r) {
    const GroupRun run = of.runs[r];
    const float* const values = of.values + run.offset;
    uint32_t* __restrict const codes = found.codes + run.offset;
    const float* __restrict const of_values = found.levels + run.offset;
    const float scale = numbers.scale[run.group], inverse = numbers.inverse[run.group];
    uint32_t all = numbers.codes[run.group];
    const size_t n = padded(run.length);
    for (size_t i = 0; i < n; ++i) {
      LevelCode found_before{0, 0};
      if constexpr (Of::kIsTable) found_before = {of_values[i], codes[i]};
      const LevelCode level = Of::kIsTable ? found_before : levels.find(values[i] * inverse);
      const uint32_t code = code_of<kPrecision>(level, values[i], scale);
      codes[i] = code;
      all |= code;
    }
    numbers.codes[run.group] = all;
  }
}

// 0 if both integers are multiples of the divisor.
BF16CODECS_INLINE float remainders(float divisor, float a, float b) {
  const float inverse = 1 / divisor;
  const float of_a = a - to_integer(a * inverse) * divisor;
  const float of_b = b - to_integer(b * inverse) * divisor;
  return magnitude_of(of_a) + magnitude_of(of_b);
}
BF16CODECS_INLINE float smaller(float a, float b) {
  return a < b ? a : b;
}

// Takes away scales that are not right and, if `is_reduced`, such with which all integers may be
// multiples of one: by the smallest and the largest, and whether any is odd.
void check(bool is_reduced, size_t groups, const GroupNumbers& numbers) {
  float* __restrict const scales = numbers.scale;
  const float never = is_reduced ? 0 : 1;
  for (size_t g = 0; g < groups; ++g) {
    const float inverse = magnitude_of(numbers.inverse[g]);
    const float least = to_integer(float_of(numbers.least[g] + 1) * inverse);
    const float most = to_integer(float_of(static_cast<uint32_t>(numbers.most[g])) * inverse);
    const auto odd = static_cast<float>(static_cast<int32_t>(numbers.codes[g] & 1));
    const float by_2 = remainders(2, least, most) + odd, by_3 = remainders(3, least, most);
    const float by_5 = remainders(5, least, most), by_7 = remainders(7, least, most);
    const float rest = smaller(smaller(by_2, by_3), smaller(by_5, by_7)) + never;
    const float scale = static_cast<int32_t>(numbers.codes[g]) < 0 ? 0 : scales[g];
    scales[g] = rest == 0 ? 0 : scale;
  }
}

void search(const Levels& levels, Precision precision, const GroupedValues& of, bool is_narrow,
            const GroupNumbers& numbers, const FoundCodes& found) {
  constexpr size_t kFew = 32, kAll = SIZE_MAX;
  // Two calls instead of the loop are compiled twice, and take 57 KB. With the bound itself as its
  // variable, columns take 7 % longer.
  bool is_last = is_narrow;
  for (;;) {
    find_middles(of.groups, numbers);
    with_family(levels, precision, [&]<typename Of, Precision kPrecision>() {
      narrow_all<Searched<Of>, kPrecision>(levels, of, is_last ? kAll : kFew, numbers, found);
    });
    if (is_last) break;
    is_last = true;
  }
  choose(levels.family == Family::integers, of.groups, numbers);
  with_family(levels, precision, [&]<typename Of, Precision kPrecision>() {
    quantize_all<Searched<Of>, kPrecision>(levels, of, numbers, found);
  });
  check(levels.family == Family::integers, of.groups, numbers);
}

void split_codes(const uint32_t* codes, size_t n, unsigned low_bits, const LevelCodes& split) {
  uint8_t* __restrict const symbols = split.symbols;
  uint8_t* __restrict const low = split.low;
  const uint32_t mask = (1u << low_bits) - 1;
  for (size_t i = 0; i < n; ++i) {
    symbols[i] = static_cast<uint8_t>(codes[i] >> low_bits);
    low[i] = static_cast<uint8_t>(codes[i] & mask);
  }
}

}  // namespace
}  // namespace bf16codecs

#include "kernels/quantized_lines.h"
