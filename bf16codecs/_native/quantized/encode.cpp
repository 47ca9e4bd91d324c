#include "quantized/encode.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "format/little_endian.h"
#include "quantized/line_search.h"
#include "quantized/search.h"
#include "quantized/section.h"
#include "quantized/super_blocks.h"

namespace bf16codecs::quantized {
namespace {

void write_numbers(const std::vector<float>& numbers, std::vector<uint8_t>& bytes) {
  bytes.resize(4 * numbers.size());
  for (size_t g = 0; g < numbers.size(); ++g) {
    store_le(bytes.data() + 4 * g, std::bit_cast<uint32_t>(numbers[g]));
  }
}

// Whether a decoder accepts the levels and numbers, as the search has to see to.
bool are_possible(const Levels& levels, const std::vector<float>& scales,
                  const std::vector<float>& offsets) {
  if (levels.family == Family::table && table_fault(levels) != nullptr) return false;
  for (size_t g = 0; g < scales.size(); ++g) {
    const float offset = offsets.empty() ? 0 : offsets[g];
    if (scales[g] != 0 && !are_within(levels.formula, scales[g], offset)) return false;
  }
  return true;
}

// Takes the scale off groups of zeros, which are plain then, as codes would take some bits for each
// zero: where half of the rows of FP8 are zero, a value takes 3.1 bits instead of 6.4.
void leave_zeros(const Section& section, float* scales) {
  for (size_t group = 0; group < section.groups(); ++group) {
    if (section.is_zero(group)) scales[group] = 0;
  }
}

// How many items are positive zeros.
size_t count_zeros(const std::vector<uint8_t>& items, size_t width) {
  size_t zeros = 0;
  for (auto item = items.begin(); item != items.end(); item += static_cast<ptrdiff_t>(width)) {
    zeros += std::count(item, item + static_cast<ptrdiff_t>(width), uint8_t{0}) ==
             static_cast<ptrdiff_t>(width);
  }
  return zeros;
}

// Packs kBits bits of each of m low bits, from bit kFrom on; returns their end.
template <unsigned kBits, unsigned kFrom>
uint8_t* pack_part(const uint8_t* low, size_t m, uint8_t* out) {
  constexpr unsigned kFields = 8 / kBits, kMask = (1u << kBits) - 1;
  const size_t size = (m * kBits + 7) / 8, last = (kFields - 1) * size;
  const size_t whole = m > last ? m - last : 0;  // bytes that have all fields
  const auto byte_at = [=](size_t i, size_t fields) {
    unsigned byte = 0;
    for (unsigned field = 0; field < fields; ++field) {
      byte |= (low[field * size + i] >> kFrom & kMask) << (field * kBits);
    }
    return static_cast<uint8_t>(byte);
  };
  for (size_t i = 0; i < whole; ++i) out[i] = byte_at(i, kFields);
  for (size_t i = whole; i < size; ++i) out[i] = byte_at(i, (m - i + size - 1) / size);
  return out + size;
}

// Packs the low bits of m codes; returns their end.
uint8_t* pack(const uint8_t* low, unsigned low_bits, size_t m, uint8_t* out) {
  switch (low_bits) {
    case 0:
      return out;
    case 1:
      return pack_part<1, 0>(low, m, out);
    case 2:
      return pack_part<2, 0>(low, m, out);
    case 3:
      return pack_part<1, 0>(low, m, pack_part<2, 1>(low, m, out));
    default:
      return pack_part<4, 0>(low, m, out);
  }
}

}  // namespace

bool quantize(const Layout& layout, const Found& found, uint64_t first, const uint8_t* items,
              size_t n, Workspace& workspace, Parts& parts) {
  const Bands bands(found.grid.groups, first, n);
  if (bands.count > n || bands.columns > n / bands.count) return false;
  const Block block{layout, found.grid.groups, first, items, n};
  Section section(block, workspace.values);
  const Precision precision = precision_of(layout, found.grid.rounding);
  const auto groups = static_cast<size_t>(bands.groups());
  std::vector<float> scales(groups), offsets(found.kind.has_offsets() ? groups : 0);
  // Two parts of low bits may take a byte more than half a byte for each code.
  uint8_t* const symbols = workspace.codes.at_least(2 * n + n / 2 + 2);
  Codes codes{symbols, symbols + n, 0, {}};
  std::vector<bool> super_blocks;  // that are found
  size_t failures = 64 + groups / 16;
  const auto find_all = [&](auto&& find) {
    while (section.next()) {
      float* const of_section = scales.data() + section.first_group();
      find(of_section);
      section.append(of_section, found.grid.levels.low_bits, codes);
    }
  };
  if (found.kind.has_offsets()) {
    LineSearch lines(found, precision, block, failures);
    find_all([&](float* of_section) {
      lines.find(section, of_section, offsets.data() + section.first_group());
    });
    super_blocks = lines.super_blocks();
  } else {
    Search search(found.kind, precision, failures);
    find_all([&](float* of_section) {
      search.find(section, of_section);
      leave_zeros(section, of_section);
    });
  }
  find_super_blocks(found, precision, block, super_blocks, scales.data(), offsets.data(), codes);
  const size_t m = codes.count;
  const size_t others = n - count_zeros(codes.plain, layout.planes());
  if (m == 0 || 4 * m < others || !are_possible(found.grid.levels, scales, offsets)) return false;
  uint8_t* const packed = symbols + 2 * n;
  uint8_t* const end = pack(codes.low, found.grid.levels.low_bits, m, packed);
  write_numbers(scales, parts.scales);
  write_numbers(offsets, parts.offsets);
  parts.low = {packed, end};
  parts.symbols = {symbols, m};
  parts.plain = std::move(codes.plain);
  return true;
}

}  // namespace bf16codecs::quantized
