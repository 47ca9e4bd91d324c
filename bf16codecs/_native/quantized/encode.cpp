#include "quantized/encode.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "format/little_endian.h"
#include "quantized/search.h"
#include "quantized/section.h"

namespace bf16codecs::quantized {
namespace {

void write_scales(const std::vector<float>& scales, std::vector<uint8_t>& bytes) {
  bytes.resize(4 * scales.size());
  for (size_t g = 0; g < scales.size(); ++g) {
    store_le(bytes.data() + 4 * g, std::bit_cast<uint32_t>(scales[g]));
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
  const Block block{layout, found.grid.groups, first, items, n};
  Section section(block, scratch);
  constexpr size_t kFailures = 64;
  Search search(found.kind, precision_of(layout, found.grid.rounding), kFailures);
  std::vector<float> scales(static_cast<size_t>(bands.groups()));
  Codes codes(n);
  while (section.next()) {
    float* const of_section = scales.data() + section.first_group();
    search.find(section, of_section);
    section.append(of_section, found.grid.levels.low_bits, codes);
  }
  const size_t m = codes.count;
  if (4 * m < n) return false;
  pack(codes.low.data(), found.grid.levels.low_bits, m, parts.low);
  write_scales(scales, parts.scales);
  codes.symbols.resize(m);
  parts.symbols = std::move(codes.symbols);
  parts.plain = std::move(codes.plain);
  return true;
}

}  // namespace bf16codecs::quantized
