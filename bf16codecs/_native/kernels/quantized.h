#pragma once

// Kernels of the grid mode (docs/format_grids.md): from codes to items and back, and the search for
// the scale of a group. All are loops over binary32 that compilers make vectors of, in
// quantized_loops.h, which is compiled for each instruction set. Every operation is one of IEEE 754
// and none is fused, so that all instruction sets give the same bytes.

#include <cstddef>
#include <cstdint>

#include "kernels/formulas.h"

namespace bf16codecs {

enum class Family : uint8_t { integers = 0, floats = 1, table = 2 };

inline constexpr unsigned kMostLevels = 32;    // of a table, and most symbols of a code
inline constexpr unsigned kMostSearched = 16;  // levels of a table that an encoder uses

struct Levels {
  Family family = Family::integers;
  Formula formula = Formula::product;  // of integers; of others it is the product
  unsigned low_bits = 0;               // of a code, 0 to 4
  int bias = 0;                        // of floats
  unsigned count = 0;                  // of a table
  float table[kMostLevels] = {};
};

// Numbers from low to high, both positive; none if low > high.
struct Interval {
  float low, high;
};

// The codes of consecutive items: a symbol each, and in a byte of its own the low bits.
struct LevelCodes {
  uint8_t* symbols;
  uint8_t* low;
};

// Where the low bits of codes lie: `bits` bits of a byte for each code, from bit `from` on.
struct LowBits {
  const uint8_t* packed;
  unsigned from, bits;
};

// The largest magnitude of values, as bits of binary32: it may be infinite or not a number. And how
// many are zeros, and of these -0.
struct Magnitudes {
  uint32_t most, zeros, negative_zeros;
};

// Consecutive codes: `count` runs of `length` codes each, with a scale for each run and, but for
// products, an offset.
struct ScaleRuns {
  const float *scales, *offsets;
  size_t length, count;
};
inline constexpr size_t kNoRuns = SIZE_MAX;  // as the length of the shortest

// Of scales, how many are 0, and how many others are not of a magnitude that they may have.
struct ScaleCounts {
  uint32_t zeros, wrong;
};

// Values of a group that lie one behind the other, from `offset` on. The first one follows again,
// up to a multiple of kRunUnit.
struct GroupRun {
  uint32_t group, length;
  size_t offset;
};
inline constexpr size_t kRunUnit = 16;  // binary32 in the widest vectors

// Values of many groups: in runs or, if `rows` is not 0, in rows of a value of each group.
struct GroupedValues {
  const float* values;
  size_t groups;
  const GroupRun* runs;
  size_t n_runs;
  size_t rows;
};

// What the search for scales knows of each group.
struct GroupNumbers {
  // Of the group's magnitudes, as bits of binary32: the largest, and the smallest one that is not
  // 0, less 1. And how many more zeros are -0 than 0.
  int32_t* most;
  uint32_t* least;
  int32_t* balance;
  // The interval of scales that are possible, as bits; none if low > high.
  int32_t *low, *high;
  float *inverse, *spread;  // of the interval: 1 / middle, and its half width as a share of it
  float* scale;             // 0 if there is none
  uint32_t* codes;          // all codes, connected by "or"
};
inline constexpr size_t kGroupNumbers = 9;

// The level of each group's largest magnitude, or of its smallest one but 0.
struct Guess {
  bool is_least;
  float level;
  bool operator==(const Guess&) const = default;
};

// Codes that are found, each in the place of its value; and memory for as many levels.
struct FoundCodes {
  uint32_t* codes;
  float* levels;
};

// Groups of one length whose values are on lines over integers, and what the search for these
// lines knows of each: as many numbers as there are groups, or as many rows of these as there may
// be levels.
inline constexpr size_t kLineLevels = 32;
struct LineGroups {
  const float* values;    // `length` rows of a value of each group
  size_t length, groups;  // a multiple of kRunUnit
  float first;            // the level of the least value

  float *least, *inverse;         // the least value; 1 / the step, 0 if there are no levels
  float* table;                   // rows: the value of each level, from the first one on
  float *low, *high;              // rows: what the table's values may have been rounded from
  float *scale_low, *scale_high;  // the interval of scales; none if low > high
  float *offset_low, *offset_high;
  float *scale, *offset;  // that are tried
  uint32_t* wrong;        // 0 if values are made of them
};
inline constexpr size_t kLineNumbers = 9 + 3 * kLineLevels;

struct QuantizedKernels {
  // Items as numbers.
  void (*load)(Container container, const uint8_t* items, size_t n, float* values);

  // Joins scales from the four planes of their bytes, rotated, and counts those that are 0, and
  // others whose magnitude is not at least `low` and below `high`.
  ScaleCounts (*scales)(const uint8_t* const planes[], size_t n, Interval magnitudes,
                        float* scales);

  void (*fill)(float value, size_t n, float* values);

  // Makes items of codes: level x scale, rounded. The low bits are in `parts` parts, 0 to 2.
  void (*multiply)(const Levels& levels, Precision precision, Container container,
                   const uint8_t* symbols, const LowBits low[], unsigned parts, const float* scales,
                   size_t n, uint8_t* items);

  // The shortest runs of one scale that multiply_runs() multiplies such levels by faster than
  // the loops do; kNoRuns if there are none. Null where there is no multiply_runs().
  size_t (*least_run)(const Levels& levels, Precision precision, Container container);
  // Does the same as multiply() and multiply_and_add(), of runs. Those of other lengths, such as
  // the ends of groups, are right too.
  void (*multiply_runs)(const Levels& levels, Precision precision, Container container,
                        const uint8_t* symbols, const LowBits low[], const ScaleRuns* runs,
                        size_t n_runs, uint8_t* items);

  // Finds the codes of values, given their scales, none of which is 0; returns whether all values
  // have one. Numbers that are infinite or not a number have none.
  bool (*quantize)(const Levels& levels, Precision precision, const float* values,
                   const float* scales, size_t n, const LevelCodes& codes);

  // The same for integers with an offset for each item. They need not have a code for -0.
  void (*multiply_and_add)(const Levels& levels, Precision precision, Container container,
                           const uint8_t* symbols, const LowBits low[], unsigned parts,
                           const float* scales, const float* offsets, size_t n, uint8_t* items);
  bool (*quantize_with_offsets)(const Levels& levels, Precision precision, const float* values,
                                const float* scales, const float* offsets, size_t n,
                                const LevelCodes& codes);

  // Of fewer than 2^32 values.
  Magnitudes (*magnitudes)(const float* values, size_t n);

  // The scales of an interval with which each value can be a level times the scale, rounded. Values
  // that may be one of two neighbouring levels say nothing.
  Interval (*narrow)(const Levels& levels, Precision precision, const float* values, size_t n,
                     const Interval& scales);

  // Finds the magnitudes and zeros of each group.
  void (*measure)(const GroupedValues& of, const GroupNumbers& numbers);

  // Begins each group's interval: where its scale is, if the guess is right. `error` is the
  // relative one of values.
  void (*start)(size_t groups, const Guess& guess, float error, const GroupNumbers& numbers);

  // Finds a scale in each group's interval, if the simplest one is right and, of integers, they are
  // not likely to be multiples of one; and the codes, in the places of the values. `is_narrow` says
  // that the interval leaves no doubt about levels, but for values near the middle of two.
  void (*search)(const Levels& levels, Precision precision, const GroupedValues& of, bool is_narrow,
                 const GroupNumbers& numbers, const FoundCodes& found);

  // The search for lines: see LineGroups. Transposes values of runs of one length.
  void (*transpose_runs)(const float* values, const GroupRun* runs, size_t n_runs, size_t groups,
                         size_t length, float* transposed);
  // Finds the levels, of which there are about `top` above the least value, and fills the table.
  void (*find_line_levels)(float top, const LineGroups& of);
  // The scales that the distances of the first `levels` rows of the table allow.
  void (*bound_scales)(Formula formula, Precision precision, size_t levels, const LineGroups& of);
  // Of sums, the offsets that go with a scale; of differences, the scales that go with an offset.
  void (*bound_lines)(Formula formula, Precision precision, size_t levels, const LineGroups& of);
  // Whether the table's values are made of scale and offset.
  void (*check_lines)(Formula formula, Precision precision, size_t levels, const LineGroups& of);
  // Of differences, the likely offsets, and the steps to the next ones: in offset_low and _high.
  void (*find_zeros)(Precision precision, size_t levels, const LineGroups& of);
  // The number of each interval that has the fewest bits.
  void (*find_simplest)(const float* lows, const float* highs, size_t n, float* numbers);
  // Finds the codes, and whether all values of a run are made of its group's scale and offset.
  void (*quantize_lines)(const Levels& levels, Precision precision, const float* values,
                         const GroupRun* runs, size_t n_runs, const LineGroups& of,
                         uint32_t* codes);

  // Splits codes into symbols and low bits.
  void (*split_codes)(const uint32_t* codes, size_t n, unsigned low_bits, const LevelCodes& split);
};

// The definition, which compilers make vectors of where the baseline of the processor has them, as
// that of WebAssembly with SIMD does.
extern const QuantizedKernels kScalarQuantizedKernels;
#if defined(__x86_64__) || defined(_M_X64)
extern const QuantizedKernels kAvx2QuantizedKernels;
extern const QuantizedKernels kAvx512QuantizedKernels;
extern const QuantizedKernels kAvx512Bf16QuantizedKernels;
#elif defined(__aarch64__) || defined(_M_ARM64)
extern const QuantizedKernels kNeonQuantizedKernels;
#endif

}  // namespace bf16codecs
