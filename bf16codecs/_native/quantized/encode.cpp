#include "quantized/encode.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "format/little_endian.h"
#include "kernels/kernels.h"
#include "quantized/groups.h"
#include "quantized/runs.h"
#include "quantized/super_blocks.h"
#include "quantized/values.h"

namespace bf16codecs::quantized {
namespace {

// The numbers of all groups of a block: scales of 0 for those that have none.
struct Numbers {
  std::vector<float> scales, offsets;
};

Numbers find_numbers(const Found& found, Precision precision, uint64_t first, const float* values,
                     size_t n) {
  const Groups& groups = found.grid.groups;
  const Bands bands(groups, first, n);
  const auto count = static_cast<size_t>(bands.groups());
  Numbers numbers{std::vector<float>(count), std::vector<float>(count)};
  constexpr size_t kFailures = 64;
  GroupFinder finder(found.kind, precision, kFailures);
  std::vector<float> collected;
  for (size_t g = 0; g < count; ++g) {
    const GroupValues group(groups, bands, first, values, n, g, collected);
    if (group.size == 0) continue;
    const GroupNumbers of_group = finder.find(group.values, group.size, group.is_whole);
    numbers.scales[g] = of_group.scale;
    numbers.offsets[g] = of_group.offset;
  }
  find_super_blocks(found, precision, first, values, n, numbers.scales.data(),
                    numbers.offsets.data());
  return numbers;
}

void write_numbers(const std::vector<float>& numbers, std::vector<uint8_t>& bytes) {
  bytes.resize(4 * numbers.size());
  for (size_t g = 0; g < numbers.size(); ++g) {
    store_le(bytes.data() + 4 * g, std::bit_cast<uint32_t>(numbers[g]));
  }
}

void pack(const uint8_t* low, unsigned low_bits, size_t m, std::vector<uint8_t>& packed) {
  unsigned above = low_bits;
  for (const Packed& part : packed_parts(low_bits, m)) {
    above -= part.bits;
    const size_t begin = packed.size();
    packed.resize(begin + part.size);
    uint8_t* const out = packed.data() + begin;
    for (size_t field = 0; field * part.size < m; ++field) {
      const uint8_t* const from = low + field * part.size;
      const size_t count = std::min(part.size, m - field * part.size);
      const unsigned mask = (1u << part.bits) - 1, shift = static_cast<unsigned>(field) * part.bits;
      for (size_t i = 0; i < count; ++i) {
        out[i] = static_cast<uint8_t>(out[i] | (from[i] >> above & mask) << shift);
      }
    }
  }
}

}  // namespace

bool quantize(const Layout& layout, const Found& found, uint64_t first, const uint8_t* items,
              size_t n, Scratch& scratch, Parts& parts) {
  const Bands bands(found.grid.groups, first, n);
  if (bands.count > n || bands.columns > n / bands.count) return false;
  const Precision precision = precision_of(layout, found.grid.rounding);
  const size_t width = layout.planes();
  float* const values = reinterpret_cast<float*>(scratch.at_least((3 * sizeof(float) + 1) * n));
  float* const item_scales = values + n;
  float* const item_offsets = item_scales + n;
  uint8_t* const low = reinterpret_cast<uint8_t*>(item_offsets + n);
  load_values(layout, items, n, values);
  const auto [scales, offsets] = find_numbers(found, precision, first, values, n);
  const bool has_offsets = found.kind.has_offsets();

  // Coded values move to the front, each with its scale.
  size_t m = 0;
  Runs runs(found.grid.groups, first, n);
  const bool is_all = std::find(scales.begin(), scales.end(), 0.0f) == scales.end();
  if (is_all) {
    Runs again = runs;
    runs.expand(scales.data(), m = n, item_scales);
    if (has_offsets) again.expand(offsets.data(), n, item_offsets);
  }
  for (size_t i = 0; i < n && !is_all;) {
    const Run run = runs.next(n);
    const float scale = scales[run.group];
    if (scale == 0) {
      parts.plain.insert(parts.plain.end(), items + width * i, items + width * (i + run.length));
    } else {
      if (m != i) std::copy_n(values + i, run.length, values + m);
      std::fill_n(item_scales + m, run.length, scale);
      if (has_offsets) std::fill_n(item_offsets + m, run.length, offsets[run.group]);
      m += run.length;
    }
    i += run.length;
  }
  if (4 * m < n) return false;
  parts.symbols.resize(m);
  if (!quantize_values(found.grid.levels, precision, values, item_scales, item_offsets, m,
                       {parts.symbols.data(), low}))
    return false;
  pack(low, found.grid.levels.low_bits, m, parts.low);
  write_numbers(scales, parts.scales);
  if (has_offsets) write_numbers(offsets, parts.offsets);
  return true;
}

}  // namespace bf16codecs::quantized
