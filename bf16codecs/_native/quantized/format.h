#pragma once

// The payload of the grid mode (docs/format_grids.md): weights that were quantised once, and
// multiplied out again.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/layout.h"
#include "kernels/quantized.h"

namespace bf16codecs::quantized {

enum class Rounding : uint8_t { direct = 0, binary16 = 1, bfloat16 = 2 };

// For information: what the weights were.
enum class Label : uint8_t {
  none = 0,
  int8 = 1,
  int6 = 2,
  int5 = 3,
  int4 = 4,
  int3 = 5,
  int2 = 6,
  ternary = 7,
  e2m1 = 8,
  fp6 = 9,
  e4m3 = 10,
  e5m2 = 11,
  nf4 = 12,
  fp4 = 13,
  palette = 14,
};

// The height or width of groups that have no end.
inline constexpr uint32_t kAllItems = UINT32_MAX;

// The groups of items that have a scale together.
struct Groups {
  uint32_t row = 1;                // items in a row
  uint32_t height = 1, width = 1;  // of a group, in rows and items

  bool operator==(const Groups&) const = default;
};

struct Grid {
  Levels levels;
  Rounding rounding = Rounding::direct;
  Label label = Label::none;
  Groups groups;

  bool has_offsets() const { return levels.formula != Formula::product; }
};

// The bands of groups of which a block has items, and the groups in each.
struct Bands {
  uint64_t first, count, columns;

  Bands(const Groups& groups, uint64_t first_item, size_t n);
  uint64_t groups() const { return count * columns; }
};

// Throws CorruptDataError.
[[noreturn]] void corrupt(const char* what);

// Whether the mode can have items of a layout.
bool supports(const Layout& layout);

// Whether items of a dtype may have been rounded so.
bool is_possible(const Layout& layout, Rounding rounding);

Container container_of(const Layout& layout);

// What products are rounded to.
Precision precision_of(const Layout& layout, Rounding rounding);

// The magnitudes of a scale that is not 0.
inline constexpr float kLeastScale = 0x1p-100f, kMostScale = 0x1p90f;
inline constexpr float kLeastLevel = 0x1p-16f, kMostLevel = 0x1p16f;
inline bool is_within(float magnitude, float least, float most) {
  return magnitude >= least && magnitude < most;
}
// The magnitudes of the scales and the offsets that a formula allows, but for 0.
struct FormulaRanges {
  Interval scales, offsets;
};
FormulaRanges ranges_of(Formula formula);
// What is wrong with a table of at most kMostLevels levels, or null.
const char* table_fault(const Levels& levels);
// Whether a group may have such a scale, which is not 0, and such an offset.
bool are_within(Formula formula, float scale, float offset);

// The parts of a payload.
struct Payload {
  Grid grid;
  const uint8_t* scales;
  size_t scales_size;
  const uint8_t* offsets;
  size_t offsets_size;
  const uint8_t* plain;
  size_t plain_size;
  const uint8_t* rest;  // low bits and symbols
  size_t rest_size;
};

// The parts of `bits` bits a code that the low bits of m codes are packed in.
struct Packed {
  unsigned bits;
  size_t size;  // in bytes
};
std::vector<Packed> packed_parts(unsigned low_bits, size_t m);

// Reads the grid from the first bytes of a payload, at most kGridBytes of it. Throws
// CorruptDataError.
inline constexpr size_t kGridBytes = 25 + 4 * kMostLevels;
Grid read_grid(const Layout& layout, uint64_t first, size_t n, const uint8_t* payload, size_t size);

// Reads all up to the scales, and finds the other parts. Throws CorruptDataError.
Payload read_payload(const Layout& layout, uint64_t first, size_t n, const uint8_t* payload,
                     size_t size);

// Writes all up to the scales.
std::vector<uint8_t> write_head(const Grid& grid, size_t scales_size, size_t offsets_size,
                                size_t plain_size);

}  // namespace bf16codecs::quantized
