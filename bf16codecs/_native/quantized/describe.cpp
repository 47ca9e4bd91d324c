#include "quantized/describe.h"

namespace bf16codecs::quantized {
namespace {

std::string levels_of(const Grid& grid) {
  switch (grid.label) {
    case Label::int8:
      return "INT8";
    case Label::int6:
      return "INT6";
    case Label::int5:
      return "INT5";
    case Label::int4:
      return "INT4";
    case Label::int3:
      return "INT3";
    case Label::int2:
      return "INT2";
    case Label::ternary:
      return "ternary";
    case Label::e2m1:
      return "FP4 E2M1";
    case Label::fp6:
      return "FP6";
    case Label::e4m3:
      return "FP8 E4M3";
    case Label::e5m2:
      return "FP8 E5M2";
    case Label::nf4:
      return "NF4";
    case Label::fp4:
      return "FP4 of bitsandbytes";
    case Label::palette:
      return "a palette of " + std::to_string(grid.levels.count);
    default:
      return "levels";
  }
}

std::string groups_of(const Groups& groups, size_t row) {
  const std::string width = std::to_string(groups.width), height = std::to_string(groups.height);
  if (groups.height == 1) {
    if (groups.width == kAllItems) return "one scale";
    return groups.width == row ? "rows" : "groups of " + width;
  }
  if (groups.width > 1) return "tiles of " + height + " x " + width;
  return groups.height == kAllItems ? "columns" : "groups of " + height + " in columns";
}

}  // namespace

std::string describe(const Grid& grid, size_t row) {
  if (grid.label == Label::palette) return levels_of(grid);
  const std::string offsets = grid.has_offsets() ? " with offsets, " : ", ";
  return levels_of(grid) + offsets + groups_of(grid.groups, row);
}

}  // namespace bf16codecs::quantized
