#include "quantized/geometry.h"

#include <bit>

namespace bf16codecs::quantized {
namespace {

constexpr uint32_t kSmaller = 128;

// Divisors of a length that are multiples of 8, but no power of 2, the largest first: above
// `found`, unless it is 0, but not multiples of twice that, which has been tried in vain. A few
// groups of 32 that have a scale may be parts of 144.
std::vector<uint32_t> odd_lengths(size_t length, uint32_t found) {
  constexpr size_t kMostParts = 4096;
  std::vector<uint32_t> lengths;
  for (size_t parts = 2; parts <= kMostParts && parts <= length / 8; ++parts) {
    const size_t part = length / parts;
    if (length % parts != 0 || part % 8 != 0 || std::has_single_bit(part)) continue;
    if (part > UINT32_MAX) continue;  // a group's sizes have 32 bits
    if (found == 0 || (part > found && part % (2 * found) != 0))
      lengths.push_back(static_cast<uint32_t>(part));
  }
  return lengths;
}

}  // namespace

std::vector<Groups> possible_groups(const Array& array, bool along_rows, bool along_columns) {
  const auto row = static_cast<uint32_t>(array.row);
  const bool has_rows = array.rows > 1;
  std::vector<Groups> groups;
  if (along_rows && (along_columns || !has_rows)) groups.push_back({kAllItems, 1, kAllItems});
  if (along_rows && along_columns && has_rows) {
    for (const uint32_t side : {128u, 256u, 64u, 32u}) {
      if (side < row && side < array.rows) groups.push_back({row, side, side});
    }
  }
  if (along_rows) {
    if (has_rows) groups.push_back({row, 1, row});
    for (const uint32_t width : {4096u, 2048u, 1024u, 512u, 256u, 128u, 64u, 32u, 16u}) {
      if (has_rows && width >= row) continue;
      // Where no row ends within a group, the rows say nothing.
      if (row % width == 0 || !has_rows) {
        groups.push_back({width, 1, width});
      } else {
        groups.push_back({row, 1, width});
        groups.push_back({width, 1, width});
      }
    }
  }
  if (along_columns && has_rows) {
    groups.push_back({row, kAllItems, 1});
    for (const uint32_t height : {1024u, 512u, 256u, 128u, 64u, 32u, 16u}) {
      if (height < array.rows) groups.push_back({row, height, 1});
    }
  }
  return groups;
}

std::vector<Groups> odd_groups(const Array& array, bool along_rows, bool along_columns,
                               const Groups* found) {
  const auto row = static_cast<uint32_t>(array.row);
  const bool is_row = found != nullptr && found->height == 1 && found->width < row;
  const bool is_column = found != nullptr && found->width == 1 && found->height < array.rows;
  std::vector<Groups> groups;
  if (array.rows < 2) return groups;
  if (along_rows && (found == nullptr || is_row)) {
    for (const uint32_t width : odd_lengths(array.row, is_row ? found->width : 0))
      groups.push_back({width, 1, width});
  }
  if (along_columns && (found == nullptr || is_column)) {
    for (const uint32_t height : odd_lengths(array.rows, is_column ? found->height : 0))
      groups.push_back({row, height, 1});
  }
  return groups;
}

std::optional<Groups> smaller_groups(const Groups& groups) {
  const auto [row, height, width] = groups;
  if (width == kAllItems) return Groups{kSmaller, 1, kSmaller};
  if (width == 1 && height > kSmaller) return Groups{row, kSmaller, 1};
  if (height > 1) return width == 1 ? std::nullopt : std::optional(Groups{row, 1, width});
  if (width <= kSmaller) return std::nullopt;
  return row % kSmaller == 0 ? Groups{kSmaller, 1, kSmaller} : Groups{row, 1, kSmaller};
}

}  // namespace bf16codecs::quantized
