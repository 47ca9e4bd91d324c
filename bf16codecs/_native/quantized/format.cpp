#include "quantized/format.h"

#include <bit>
#include <cmath>
#include <string>

#include "format/errors.h"
#include "format/little_endian.h"
#include "rans/payload.h"

namespace bf16codecs::quantized {

void corrupt(const char* what) {
  throw CorruptDataError(std::string("grid: ") + what);
}

namespace {

constexpr unsigned kMostLowBits = 4;
constexpr int kMostBias = 15;

// The family of integers with offsets, which have a formula.
constexpr uint8_t kWithOffsets = 3;

// `detail` is the bias of floats, the number of a table's levels, or a formula with offsets.
Levels read_levels(uint8_t family, uint8_t low_bits, uint8_t detail) {
  if (family > kWithOffsets) corrupt("an unknown family");
  if (low_bits > kMostLowBits) corrupt("codes of too many low bits");
  Levels levels;
  levels.low_bits = low_bits;
  if (family == kWithOffsets) {
    if (detail >= static_cast<uint8_t>(Formula::difference)) corrupt("an unknown formula");
    levels.formula = Formula{static_cast<uint8_t>(detail + 1)};
    return levels;
  }
  levels.family = Family{family};
  switch (levels.family) {
    case Family::integers:
      if (detail != 0) corrupt("integers with a bias");
      break;
    case Family::floats:
      if (low_bits == 0) corrupt("floats without a sign");
      if (detail > kMostBias) corrupt("a bias that is too large");
      levels.bias = detail;
      break;
    case Family::table:
      if (low_bits != 0) corrupt("a table with low bits");
      if (detail > kMostLevels) corrupt("a table of too many levels");
      levels.count = detail;
  }
  return levels;
}

void read_table(Fields& fields, Levels& levels) {
  if (levels.family != Family::table) return;
  for (unsigned i = 0; i < levels.count; ++i) {
    levels.table[i] = std::bit_cast<float>(fields.number<uint32_t>());
  }
  if (const char* const fault = table_fault(levels)) corrupt(fault);
}

Groups read_groups(Fields& fields) {
  Groups groups;
  groups.row = fields.number<uint32_t>();
  groups.height = fields.number<uint32_t>();
  groups.width = fields.number<uint32_t>();
  if (groups.height == 0 || groups.width == 0 || groups.width > groups.row)
    corrupt("groups of no possible size");
  return groups;
}

}  // namespace

const char* table_fault(const Levels& levels) {
  if (levels.count < 2) return "a table of too few levels";
  for (unsigned i = 0; i < levels.count; ++i) {
    const float level = levels.table[i];
    if (level != 0 && !is_within(std::fabs(level), kLeastLevel, kMostLevel))
      return "a level that is out of range";
    for (unsigned j = 0; j < i; ++j) {
      if (std::bit_cast<uint32_t>(level) == std::bit_cast<uint32_t>(levels.table[j]))
        return "two equal levels";
    }
  }
  return nullptr;
}

Bands::Bands(const Groups& groups, uint64_t first_item, size_t n)
    : first(first_item / groups.row / groups.height),
      count((first_item + n - 1) / groups.row / groups.height - first + 1),
      columns((uint64_t{groups.row} + groups.width - 1) / groups.width) {}

bool supports(const Layout& layout) {
  return !layout.by_byte && (layout.dtype == DType::bfloat16 || layout.dtype == DType::float16 ||
                             layout.dtype == DType::float32);
}

bool is_possible(const Layout& layout, Rounding rounding) {
  return rounding == Rounding::direct ||
         (rounding == Rounding::binary16 && layout.dtype != DType::float16) ||
         (rounding == Rounding::bfloat16 && layout.dtype != DType::bfloat16);
}

Container container_of(const Layout& layout) {
  return layout.dtype == DType::bfloat16  ? Container::bfloat16
         : layout.dtype == DType::float16 ? Container::float16
                                          : Container::float32;
}

Precision precision_of(const Layout& layout, Rounding rounding) {
  switch (layout.dtype) {
    case DType::float16:
      return rounding == Rounding::bfloat16 ? Precision::bfloat16_binary16 : Precision::binary16;
    case DType::float32:
      return rounding == Rounding::direct     ? Precision::binary32
             : rounding == Rounding::binary16 ? Precision::binary16
                                              : Precision::bfloat16;
    default:
      return rounding == Rounding::binary16 ? Precision::binary16_bfloat16 : Precision::bfloat16;
  }
}

FormulaRanges ranges_of(Formula formula) {
  constexpr Interval kAll{kLeastScale, kMostScale};
  if (formula != Formula::difference) return {kAll, kAll};
  return {{0x1p-80f, kMostScale}, {0x1p-20f, 0x1p20f}};
}

bool are_within(Formula formula, float scale, float offset) {
  const auto [scales, offsets] = ranges_of(formula);
  const bool is_zero = std::bit_cast<uint32_t>(offset) == 0;
  return is_within(std::fabs(scale), scales.low, scales.high) &&
         (is_zero || is_within(std::fabs(offset), offsets.low, offsets.high));
}

std::vector<Packed> packed_parts(unsigned low_bits, size_t m) {
  const auto part = [m](unsigned bits) { return Packed{bits, (m * bits + 7) / 8}; };
  if (low_bits == 0) return {};
  if (low_bits == 3) return {part(2), part(1)};
  return {part(low_bits)};
}

namespace {

// The grid, and the sizes of the other parts.
Payload read_fields(const Layout& layout, uint64_t first, size_t n, Fields& fields) {
  if (!supports(layout)) corrupt("a dtype or layout that has none");
  Payload parts{};
  Grid& grid = parts.grid;
  const auto family = fields.number<uint8_t>(), low_bits = fields.number<uint8_t>(),
             detail = fields.number<uint8_t>(), rounding = fields.number<uint8_t>();
  grid.levels = read_levels(family, low_bits, detail);
  grid.rounding = Rounding{rounding};
  if (!is_possible(layout, grid.rounding)) corrupt("a rounding that its dtype does not have");
  grid.label = Label{fields.number<uint8_t>()};
  grid.groups = read_groups(fields);
  const Bands bands(grid.groups, first, n);
  if (bands.count > n || bands.columns > n / bands.count) corrupt("more groups than items");
  parts.scales_size = fields.number<uint32_t>();
  parts.plain_size = fields.number<uint32_t>();
  read_table(fields, grid.levels);
  if (grid.has_offsets()) parts.offsets_size = fields.number<uint32_t>();
  return parts;
}

}  // namespace

Grid read_grid(const Layout& layout, uint64_t first, size_t n, const uint8_t* payload,
               size_t size) {
  Fields fields("grid", payload, size);
  return read_fields(layout, first, n, fields).grid;
}

Payload read_payload(const Layout& layout, uint64_t first, size_t n, const uint8_t* payload,
                     size_t size) {
  Fields fields("grid", payload, size);
  Payload parts = read_fields(layout, first, n, fields);
  parts.scales = fields.take(parts.scales_size);
  parts.offsets = fields.take(parts.offsets_size);
  parts.plain = fields.take(parts.plain_size);
  parts.rest_size = fields.left();
  parts.rest = fields.take(parts.rest_size);
  return parts;
}

std::vector<uint8_t> write_head(const Grid& grid, size_t scales_size, size_t offsets_size,
                                size_t plain_size) {
  const Levels& levels = grid.levels;
  const unsigned detail = grid.has_offsets() ? static_cast<unsigned>(levels.formula) - 1
                          : levels.family == Family::floats ? static_cast<unsigned>(levels.bias)
                                                            : levels.count;
  const uint8_t family = grid.has_offsets() ? kWithOffsets : static_cast<uint8_t>(levels.family);
  std::vector<uint8_t> head{family, static_cast<uint8_t>(levels.low_bits),
                            static_cast<uint8_t>(detail), static_cast<uint8_t>(grid.rounding),
                            static_cast<uint8_t>(grid.label)};
  const auto add = [&head](uint32_t number) {
    head.resize(head.size() + sizeof number);
    store_le(head.data() + head.size() - sizeof number, number);
  };
  add(grid.groups.row);
  add(grid.groups.height);
  add(grid.groups.width);
  add(static_cast<uint32_t>(scales_size));
  add(static_cast<uint32_t>(plain_size));
  for (unsigned i = 0; i < levels.count; ++i) add(std::bit_cast<uint32_t>(levels.table[i]));
  if (grid.has_offsets()) add(static_cast<uint32_t>(offsets_size));
  return head;
}

}  // namespace bf16codecs::quantized
