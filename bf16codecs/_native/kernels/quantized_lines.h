#pragma once

// The loops of the search for the scales and offsets of many groups at once (quantized.h). Groups
// lie side by side, so that vectors have a value of each; quantized_search.h includes this behind
// what it needs. Bounds are somewhat too wide or too narrow, by binary32's rounding: check_lines()
// decides.

namespace bf16codecs {
namespace {

// What a table has where no value is of a level.
constexpr uint32_t kNoValue = 0x7FC00000;
BF16CODECS_INLINE bool has_value(float x) {
  return bits_of(x) != kNoValue;
}

BF16CODECS_INLINE float larger(float a, float b) {
  return a > b ? a : b;
}

// A multiple of kRunUnit, as compilers should know.
BF16CODECS_INLINE size_t groups_of(const LineGroups& of) {
  return of.groups / kRunUnit * kRunUnit;
}

// Numbers from low to high, of either sign.
struct Bound {
  float low, high;
};

// Finds the least value, and 1 / the range; 0 if values are alike, not finite, or far apart.
void measure_lines(const LineGroups& of) {
  float* __restrict const least = of.least;
  float* __restrict const inverse = of.inverse;
  const size_t groups = groups_of(of);
  for (size_t g = 0; g < groups; ++g) least[g] = inverse[g] = of.values[g];
  for (size_t i = 1; i < of.length; ++i) {
    const float* const values = of.values + i * groups;
    for (size_t g = 0; g < groups; ++g) {
      least[g] = smaller(values[g], least[g]);
      inverse[g] = larger(values[g], inverse[g]);
    }
  }
  constexpr float kLeast = 0x1p-60f, kMost = 0x1p60f;
  for (size_t g = 0; g < groups; ++g) {
    const float range = inverse[g] - least[g];
    const float possible = range < kMost ? range : 0;
    inverse[g] = possible > kLeast ? 1 / possible : 0;
  }
}

// How far values are from integers, if there are so many levels.
BF16CODECS_INLINE void add_misfits(const float* values, float levels, const LineGroups& of,
                                   float* misfits) {
  const size_t groups = groups_of(of);
  const float* __restrict const least = of.least;
  const float* __restrict const inverse = of.inverse;
  float* __restrict const most = misfits;
  for (size_t g = 0; g < groups; ++g) {
    const float x = (values[g] - least[g]) * inverse[g] * levels;
    most[g] = larger(magnitude_of(x - to_integer(x)), most[g]);
  }
}

// Of some numbers of levels, from `top` down, chooses the one to whose integers values are nearest:
// the inverse is then that of a step. (With all numbers in one loop, compilers made no vectors, and
// it took 2 ns a value.)
void choose_levels(float top, const LineGroups& of) {
  constexpr size_t kRows = 16;
  constexpr int kTries = 4;
  constexpr float kMost = 0.25f;
  const size_t groups = groups_of(of), rows = of.length < kRows ? of.length : kRows;
  float* __restrict const misfits = of.low;  // rows of a table
  for (size_t i = 0; i < kTries * groups; ++i) misfits[i] = 0;
  for (size_t i = 0; i < rows; ++i) {
    const float* const values = of.values + i * groups;
    for (int k = 0; k < kTries; ++k) {
      const float levels = top - static_cast<float>(k);
      add_misfits(values, levels, of, misfits + static_cast<size_t>(k) * groups);
    }
  }
  float* __restrict const inverse = of.inverse;
  for (size_t g = 0; g < groups; ++g) {
    float chosen = 0, best = kMost;
    for (int k = 0; k < kTries; ++k) {
      const float misfit = misfits[static_cast<size_t>(k) * groups + g];
      const float levels = top - static_cast<float>(k);
      const bool is_better = misfit < best && levels >= 1;
      chosen = is_better ? levels : chosen;
      best = is_better ? misfit : best;
    }
    inverse[g] *= chosen;
  }
}

// Enters the values at their levels.
void fill_table(const LineGroups& of) {
  const size_t groups = groups_of(of);
  uint32_t* __restrict const places = of.wrong;
  const auto row = static_cast<uint32_t>(groups);
  for (size_t i = 0; i < kLineLevels * groups; ++i) of.table[i] = float_of(kNoValue);
  for (size_t i = 0; i < of.length; ++i) {
    const float* const values = of.values + i * groups;
    for (size_t g = 0; g < groups; ++g) {
      const float x = (values[g] - of.least[g]) * of.inverse[g];
      const uint32_t level = integer_in(x + kIntegers) & (kLineLevels - 1);
      places[g] = level * row + static_cast<uint32_t>(g);
    }
    for (size_t g = 0; g < groups; ++g) of.table[places[g]] = values[g];
  }
}

// Two neighbours must be one level apart, or else all may be multiples of a larger step.
void find_line_levels(float top, const LineGroups& of) {
  measure_lines(of);
  choose_levels(top, of);
  fill_table(of);
  const size_t groups = groups_of(of);
  uint32_t* __restrict const apart = of.wrong;
  for (size_t g = 0; g < groups; ++g) apart[g] = 1;
  for (size_t l = 1; l < kLineLevels; ++l) {
    const float* const row = of.table + l * groups;
    const float* const before = row - groups;
    for (size_t g = 0; g < groups; ++g) {
      const uint32_t is_apart = has_value(row[g]) && has_value(before[g]) ? 0 : 1;
      apart[g] &= is_apart;
    }
  }
  for (size_t g = 0; g < groups; ++g) of.inverse[g] = apart[g] != 0 ? 0 : of.inverse[g];
}

// The numbers that are rounded to a value. (With half a step and more on either side, 9 % of HQQ's
// groups were left to the slower search.) The scale of differences is often an end of its interval,
// since ties are simple numbers: for even values, to which ties are rounded, the ends are moved
// outwards, for odd values inwards.
template <Formula kFormula, Precision kPrecision>
BF16CODECS_INLINE Bound rounded_from(float value) {
  constexpr bool kIsTwice =
      kPrecision == Precision::binary16_bfloat16 || kPrecision == Precision::bfloat16_binary16;
  constexpr Precision kLast = kIsTwice ? Precision::bfloat16 : kPrecision;
  constexpr unsigned kZeros = kLast == Precision::bfloat16   ? 16
                              : kLast == Precision::binary16 ? 13
                                                             : 0;
  const uint32_t bits = bits_of(value);
  const float magnitude = magnitude_of(value);
  const bool is_odd = (bits >> kZeros & 1) != 0;
  float outer = half_step<kLast>(magnitude);  // away from 0
  // The middle of two numbers is one of binary16: what is rounded to it goes to the even number.
  if constexpr (kPrecision == Precision::binary16_bfloat16) {
    const float of_middle = half_step<Precision::binary16>(magnitude);
    outer += is_odd ? -of_middle : of_middle;
  }
  if constexpr (kPrecision == Precision::bfloat16_binary16) {
    outer += magnitude < kLeastOfBoth ? half_step<Precision::binary16>(magnitude) : 0;
  }
  if constexpr (kFormula == Formula::difference) {
    constexpr float kShare = kLast == Precision::bfloat16 ? 0x1p-15f : 0x1p-12f;
    outer *= is_odd ? 1 - kShare : 1 + kShare;
  }
  // Below a power of two, steps are half as large.
  constexpr float kLeast = kLast == Precision::binary16 ? 1.0f / 16384 : 0;
  const bool is_power = (bits & 0x7FFFFF) == 0 && magnitude > kLeast;
  const float inner = is_power ? outer * 0.5f : outer;
  const bool is_negative = bits >> 31 != 0;
  return {value - (is_negative ? outer : inner), value + (is_negative ? inner : outer)};
}

// What is added by roundings before the last one.
template <Formula kFormula, Precision kPrecision>
BF16CODECS_INLINE float error_before(float value, float range) {
  if constexpr (kFormula == Formula::rounded_sum) return half_step<half(kPrecision)>(range);
  if constexpr (kFormula == Formula::difference)
    return half_step<half(kPrecision)>(magnitude_of(value));
  return 0;
}

// Of each group, what values may have been rounded from.
template <Formula kFormula, Precision kPrecision>
void bound_values(size_t levels, const LineGroups& of) {
  const size_t groups = groups_of(of);
  float* __restrict const lows = of.low;
  float* __restrict const highs = of.high;
  const float infinity = float_of(kInfinity), count = static_cast<float>(static_cast<int>(levels));
  for (size_t l = 0; l < levels; ++l) {
    const float* const values = of.table + l * groups;
    for (size_t g = 0; g < groups; ++g) {
      const float value = values[g], range = count / larger(of.inverse[g], 0x1p-70f);
      const float error = error_before<kFormula, kPrecision>(value, range);
      const Bound from = rounded_from<kFormula, kPrecision>(value);
      lows[l * groups + g] = has_value(value) ? from.low - error : -infinity;
      highs[l * groups + g] = has_value(value) ? from.high + error : infinity;
    }
  }
}

// The scales that the distances between values allow.
void bound_by_all_distances(size_t levels, const LineGroups& of) {
  const size_t groups = groups_of(of);
  const float* __restrict const lows = of.low;
  const float* __restrict const highs = of.high;
  float* __restrict const low = of.scale_low;
  float* __restrict const high = of.scale_high;
  for (size_t g = 0; g < groups; ++g) low[g] = 0;
  for (size_t g = 0; g < groups; ++g) high[g] = of.inverse[g] > 0 ? float_of(kInfinity) : -1;
  for (size_t b = 1; b < levels; ++b) {
    for (size_t a = 0; a < b; ++a) {
      const float share = 1 / static_cast<float>(static_cast<int>(b - a));
      for (size_t g = 0; g < groups; ++g) {
        const float least = (lows[b * groups + g] - highs[a * groups + g]) * share;
        const float most = (highs[b * groups + g] - lows[a * groups + g]) * share;
        low[g] = larger(least, low[g]);
        high[g] = smaller(most, high[g]);
      }
    }
  }
  // Sums of short numbers are often ties, and their scale is an end of the interval.
  for (size_t g = 0; g < groups; ++g) low[g] *= 1 - 0x1p-22f;
  for (size_t g = 0; g < groups; ++g) high[g] *= 1 + 0x1p-22f;
}

// Of sums, the offsets that values allow with a scale; of differences, the scales with a zero.
template <Formula kFormula, Precision kPrecision>
void bound_lines_as(size_t levels, const LineGroups& of) {
  constexpr bool kIsDifference = kFormula == Formula::difference;
  const size_t groups = groups_of(of);
  const float infinity = float_of(kInfinity);
  float* __restrict const low = kIsDifference ? of.scale_low : of.offset_low;
  float* __restrict const high = kIsDifference ? of.scale_high : of.offset_high;
  for (size_t g = 0; g < groups; ++g) low[g] = kIsDifference ? 0 : -infinity;
  for (size_t g = 0; g < groups; ++g) high[g] = infinity;
  for (size_t l = 0; l < levels; ++l) {
    const float* const values = of.table + l * groups;
    const float level = of.first + static_cast<float>(static_cast<int>(l));
    for (size_t g = 0; g < groups; ++g) {
      const float value = values[g];
      const Bound from = rounded_from<kFormula, kPrecision>(value);
      float least, most;
      bool is_any = !has_value(value);
      if constexpr (kIsDifference) {
        const float factor = rounded<half(kPrecision)>(level - of.offset[g]);
        const float share = 1 / (factor == 0 ? 1 : factor);
        const float a = from.low * share, b = from.high * share;
        least = smaller(a, b), most = larger(a, b);
        is_any = is_any || factor == 0;
      } else {
        float product = level * of.scale[g];
        if constexpr (kFormula == Formula::rounded_sum)
          product = rounded<half(kPrecision)>(product);
        least = from.low - product, most = from.high - product;
      }
      low[g] = larger(is_any ? -infinity : least, low[g]);
      high[g] = smaller(is_any ? infinity : most, high[g]);
    }
  }
}

// Whether the values at all levels are made of the scale and the offset.
template <Formula kFormula, Precision kPrecision>
void check_lines_as(size_t levels, const LineGroups& of) {
  const size_t groups = groups_of(of);
  uint32_t* __restrict const wrong = of.wrong;
  for (size_t g = 0; g < groups; ++g) wrong[g] = of.inverse[g] > 0 ? 0 : 1;
  for (size_t l = 0; l < levels; ++l) {
    const float* const values = of.table + l * groups;
    const float level = of.first + static_cast<float>(static_cast<int>(l));
    for (size_t g = 0; g < groups; ++g) {
      const float made = with_offset<kFormula, kPrecision>(level, of.scale[g], of.offset[g]);
      wrong[g] |= has_value(values[g]) ? bits_of(made) ^ bits_of(values[g]) : 0;
    }
  }
}

void bound_scales(Formula formula, Precision precision, size_t levels, const LineGroups& of) {
  with_formula(formula, precision, [&]<Formula kFormula, Precision kPrecision>() {
    bound_values<kFormula, kPrecision>(levels, of);
  });
  bound_by_all_distances(levels, of);
}

void bound_lines(Formula formula, Precision precision, size_t levels, const LineGroups& of) {
  with_formula(formula, precision, [&]<Formula kFormula, Precision kPrecision>() {
    bound_lines_as<kFormula, kPrecision>(levels, of);
  });
}

void check_lines(Formula formula, Precision precision, size_t levels, const LineGroups& of) {
  with_formula(formula, precision, [&]<Formula kFormula, Precision kPrecision>() {
    check_lines_as<kFormula, kPrecision>(levels, of);
  });
}

// Puts the likely zeros of differences, with the scales in the middles of the intervals, into the
// offsets' low ends, and the distances to the next numbers into their high ends.
void find_zeros(Precision precision, size_t levels, const LineGroups& of) {
  const size_t groups = groups_of(of);
  float* __restrict const sums = of.offset_low;
  float* __restrict const counts = of.offset_high;
  float* __restrict const inverses = of.scale;
  for (size_t g = 0; g < groups; ++g) {
    sums[g] = counts[g] = 0;
    const float middle = (of.scale_low[g] + of.scale_high[g]) * 0.5f;
    inverses[g] = 1 / (middle > 0 ? middle : 1);
  }
  for (size_t l = 0; l < levels; ++l) {
    const float* const values = of.table + l * groups;
    const float level = of.first + static_cast<float>(static_cast<int>(l));
    for (size_t g = 0; g < groups; ++g) {
      sums[g] += has_value(values[g]) ? level - values[g] * inverses[g] : 0;
      counts[g] += has_value(values[g]) ? 1.0f : 0.0f;
    }
  }
  with_precision(precision, [&]<Precision kPrecision>() {
    for (size_t g = 0; g < groups; ++g) {
      const float zero = rounded<half(kPrecision)>(sums[g] / (counts[g] > 0 ? counts[g] : 1));
      sums[g] = zero;
      counts[g] = 2 * half_step<half(kPrecision)>(magnitude_of(zero));
    }
  });
}

// The simplest number of each interval, of either sign: 0, if it is in it.
void find_simplest(const float* lows, const float* highs, size_t n, float* numbers) {
  for (size_t i = 0; i < n; ++i) {
    const float low = lows[i], high = highs[i];
    const uint32_t a = bits_of(low) & ~kSign, b = bits_of(high) & ~kSign;
    const uint32_t sign = high < 0 ? kSign : 0;
    const uint32_t number = simplest_of(a < b ? a : b, a < b ? b : a) | sign;
    numbers[i] = float_of(low <= 0 && high >= 0 ? 0 : number);
  }
}

template <Formula kFormula, Precision kPrecision>
void quantize_lines_as(const Levels& levels, const float* all_values, const GroupRun* runs,
                       size_t n_runs, const LineGroups& of, uint32_t* all_codes) {
  const uint32_t zero = 16u << levels.low_bits;
  for (size_t r = 0; r < n_runs; ++r) {
    const float* const values = all_values + runs[r].offset;
    uint32_t* __restrict const codes = all_codes + runs[r].offset;
    const float least = of.least[r], inverse = of.inverse[r], scale = of.scale[r];
    const float offset = of.offset[r], first = of.first;
    const size_t n = padded(runs[r].length);
    uint32_t wrong = inverse > 0 ? 0 : 1;
    for (size_t i = 0; i < n; ++i) {
      const float sum = ((values[i] - least) * inverse + first) + kIntegers;
      const uint32_t code = integer_in(sum) + zero;
      codes[i] = code;
      const float made = with_offset<kFormula, kPrecision>(sum - kIntegers, scale, offset);
      wrong |= code < 2 * zero ? bits_of(made) ^ bits_of(values[i]) : 1;
    }
    of.wrong[r] = wrong;
  }
}

void quantize_lines(const Levels& levels, Precision precision, const float* values,
                    const GroupRun* runs, size_t n_runs, const LineGroups& of, uint32_t* codes) {
  with_formula(levels.formula, precision, [&]<Formula kFormula, Precision kPrecision>() {
    quantize_lines_as<kFormula, kPrecision>(levels, values, runs, n_runs, of, codes);
  });
}

// Puts values of groups side by side; groups that there are not are copies of the first one.
void transpose_runs(const float* values, const GroupRun* runs, size_t n_runs, size_t groups,
                    size_t length, float* transposed) {
  for (size_t g = 0; g < groups; ++g) {
    const float* const from = values + runs[g < n_runs ? g : 0].offset;
    for (size_t i = 0; i < length; ++i) transposed[i * groups + g] = from[i];
  }
}

}  // namespace
}  // namespace bf16codecs
