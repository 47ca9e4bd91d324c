#include "lockstep/grids.h"

#include <cmath>
#include <cstring>

#include "block/block.h"
#include "format/little_endian.h"
#include "quantized/format.h"
#include "random_levels.h"

namespace bf16codecs::test {
namespace {

using quantized::Grid;
using quantized::Groups;
using quantized::Rounding;

void append(Bytes& bytes, const Bytes& more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

Levels random_grid_levels(Random& random) {
  Levels levels =
      random_levels(random, [](unsigned i) { return (static_cast<float>(i) - 7.5f) * 0.37f; });
  if (levels.family == Family::integers)
    levels.formula = Formula{static_cast<uint8_t>(random.below(4))};
  return levels;
}

Rounding random_rounding(DType dtype, Random& random) {
  const unsigned roundings = dtype == DType::float16 ? 1 : dtype == DType::bfloat16 ? 2 : 3;
  return Rounding{static_cast<uint8_t>(random.below(roundings))};
}

// Groups of which blocks of n items or more have fewer than items.
Groups random_groups(size_t n, Random& random) {
  switch (random.below(4)) {
    case 0:  // one for all
      return {quantized::kAllItems, quantized::kAllItems, quantized::kAllItems};
    case 1: {  // of rows that are not cut
      const uint32_t row = 8 + random.below(300);
      return {row, 1 + random.below(3), row};
    }
    case 2: {  // of the usual widths
      const uint32_t width = 8u << random.below(5);
      return {width * (1 + random.below(9)), 1, width};
    }
    default: {
      const auto row = static_cast<uint32_t>(1 + random.below(n / 2 + 1));
      const uint32_t width = 1 + random.below(row), height = 2 + random.below(9);
      return {row, height, width};
    }
  }
}

// Of all magnitudes that an item may have, for differences of fewer.
float random_number(bool is_small, Random& random) {
  const float fraction = 1 + static_cast<float>(random.below(1 << 23)) * 0x1p-23f;
  const bool is_extreme = !is_small && random.below(9) == 0;
  const int exponent = static_cast<int>(is_extreme ? random.below(190) : random.below(24));
  const float number = std::ldexp(fraction, exponent - (is_extreme ? 100 : 16));
  return random.below(4) == 0 ? -number : number;
}

// A block of n items within a payload.
Bytes inner_block(const Layout& layout, Codec codec, const Bytes& items) {
  EncodeOptions options;
  options.codec = codec;
  options.layout = layout;
  Workspace workspace;
  const size_t n = items.size() / layout.planes();
  Bytes block(block_bound(layout.planes(), n));
  block.resize(encode_block(options, {workspace}, items.data(), n, block.data(), nullptr));
  return block;
}

Bytes number_block(const std::vector<float>& numbers) {
  Bytes bytes(sizeof(float) * numbers.size());
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return inner_block({DType::float32, false}, Codec::arithmetic, bytes);
}

// Scales, some of which are 0 if groups may be plain.
std::vector<float> random_scales(size_t count, bool is_small, bool has_plain, Random& random) {
  std::vector<float> scales;
  for (size_t g = 0; g < count; ++g) {
    const bool is_plain = has_plain && random.below(4) == 0;
    scales.push_back(is_plain ? 0 : random_number(is_small, random));
  }
  return scales;
}

std::vector<float> random_offsets(const std::vector<float>& scales, bool is_small, Random& random) {
  std::vector<float> offsets;
  for (const float scale : scales) {
    const bool is_zero = scale == 0 || random.below(5) == 0;
    offsets.push_back(is_zero ? 0 : random_number(is_small, random));
  }
  return offsets;
}

// How many of n items are in groups with a scale.
size_t count_coded(const Groups& groups, uint64_t first, size_t n,
                   const std::vector<float>& scales) {
  const quantized::Bands bands(groups, first, n);
  size_t coded = 0;
  for (uint64_t i = first; i < first + n; ++i) {
    const uint64_t band = i / groups.row / groups.height - bands.first;
    const uint64_t group = band * bands.columns + i % groups.row / groups.width;
    coded += scales[static_cast<size_t>(group)] != 0 ? 1 : 0;
  }
  return coded;
}

Bytes random_low_bits(unsigned low_bits, size_t n, Random& random) {
  Bytes packed;
  for (const auto& [bits, size] : quantized::packed_parts(low_bits, n)) {
    Bytes part(size);
    for (size_t j = 0; j < n; ++j) {
      part[j % size] |= static_cast<uint8_t>(random.below(1u << bits) << (j / size * bits));
    }
    append(packed, part);
  }
  return packed;
}

// Mode and payload, as a block of one plane has them but for a size.
Bytes random_symbols(size_t n, Random& random) {
  constexpr Codec kCodecs[] = {Codec::split, Codec::huffman, Codec::arithmetic};
  const Codec codec = kCodecs[random.below(3)];
  Bytes symbols(n);
  const unsigned kind = random.below(8), first = random.below(32);
  for (uint8_t& symbol : symbols) {
    const auto bits = static_cast<unsigned>(std::countr_zero(random.next() | 1 << 20));
    symbol = kind == 0   ? random.byte()
             : kind == 1 ? static_cast<uint8_t>(first)
                         : static_cast<uint8_t>((first + bits) % 32);
  }
  Bytes block = inner_block({DType::float8_e4m3fn, true}, codec, symbols);
  if (is_coded(Mode{block[0]})) block.erase(block.begin() + 1, block.begin() + 5);
  return block;
}

Bytes random_block(const Header& header, const Grid& grid, uint64_t first, size_t n,
                   Random& random) {
  const size_t groups = static_cast<size_t>(quantized::Bands(grid.groups, first, n).groups());
  const bool is_small = grid.levels.formula == Formula::difference;
  std::vector<float> of_groups = random_scales(groups, is_small, random.below(2) == 0, random);
  size_t coded = count_coded(grid.groups, first, n, of_groups);
  if (coded == 0) {
    of_groups = random_scales(groups, is_small, false, random);
    coded = n;
  }
  const Bytes scales = number_block(of_groups);
  Bytes offsets, plain;
  if (grid.has_offsets()) offsets = number_block(random_offsets(of_groups, is_small, random));
  if (coded != n) {
    plain = inner_block(header.layout, Codec::huffman, random.bytes((n - coded) * header.width()));
  }
  Bytes payload = quantized::write_head(grid, scales.size(), offsets.size(), plain.size());
  append(payload, scales);
  append(payload, offsets);
  append(payload, plain);
  append(payload, random_low_bits(grid.levels.low_bits, coded, random));
  append(payload, random_symbols(coded, random));
  Bytes block(header.width(), static_cast<uint8_t>(Mode::joined));
  block[0] = static_cast<uint8_t>(Mode::grid);
  block.resize(block.size() + 4);
  store_le(block.data() + header.width(), static_cast<uint32_t>(payload.size()));
  append(block, payload);
  return block;
}

bool is_possible(const Groups& groups, uint64_t first, size_t n) {
  const quantized::Bands bands(groups, first, n);
  return bands.count <= n && bands.columns <= n / bands.count;
}

}  // namespace

GridFrame random_grids(Random& random) {
  constexpr DType kDTypes[] = {DType::bfloat16, DType::float16, DType::float32};
  GridFrame result;
  Header& header = result.index.header;
  header.version = kFormatVersion;
  header.layout = {kDTypes[random.below(3)], false};
  header.block_log2 = 8 + random.below(5);
  header.has_checksums = false;
  header.raw_size = (1 + random.below(3 * header.block_items())) * header.width();
  Grid grid;
  grid.levels = random_grid_levels(random);
  grid.rounding = random_rounding(header.layout.dtype, random);
  grid.groups = random_groups(header.block_items(), random);
  result.index.offsets = {64};
  for (size_t b = 0; b < header.blocks(); ++b) {
    const uint64_t first = header.first_item(b);
    const auto n = static_cast<size_t>(header.first_item(b + 1) - first);
    if (!is_possible(grid.groups, first, n)) grid.groups = {1, quantized::kAllItems, 1};
    append(result.blocks, random_block(header, grid, first, n, random));
    result.index.offsets.push_back(64 + result.blocks.size());
  }
  return result;
}

}  // namespace bf16codecs::test
