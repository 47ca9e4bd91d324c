#include "codec/device_grid.h"

#include <cstring>

#include "block/grid.h"
#include "format/errors.h"

namespace bf16codecs {
namespace {

// Whether a device decodes a plane of symbols in this mode.
bool has_symbols_in(Mode mode) {
  return mode <= Mode::rans_wide;
}

// Writes where the first item is among the groups; returns whether a device can count from there.
bool place_first(const quantized::Groups& groups, uint64_t first, size_t n, cuda::Grid& grid) {
  grid.row = groups.row;
  grid.height = groups.height;
  grid.width = groups.width;
  grid.groups = static_cast<uint32_t>(quantized::Bands(groups, first, n).columns);
  grid.column = static_cast<uint32_t>(first % groups.row);
  grid.row_of_band = static_cast<uint32_t>(first / groups.row % groups.height);
  return n <= UINT32_MAX - grid.column && n <= UINT32_MAX - grid.row_of_band;
}

// The low bits of n codes, which begin at a byte of the block.
void place_low_bits(unsigned low_bits, size_t n, size_t begin, cuda::Grid& grid) {
  cuda::PackedBits* to = grid.low;
  for (const auto& [bits, size] : quantized::packed_parts(low_bits, n)) {
    *to++ = {static_cast<uint32_t>(begin), static_cast<uint32_t>(size), bits};
    begin += size;
  }
}

}  // namespace

std::optional<DeviceGrid> DeviceGrid::read(const Layout& layout, const BlockContext& context,
                                           const uint8_t* block, size_t size, size_t n) try {
  PlaneView planes[kMaxItemSize];
  parse_block(layout.planes(), n, block, size, planes);
  auto [payload, scales, plain, symbols] = read_grid(layout, context, planes[0], n, nullptr);
  const Levels& levels = payload.grid.levels;
  DeviceGrid result;
  cuda::Grid& grid = result.grid_;
  const bool is_possible = size <= cuda::kMostPayload && has_symbols_in(symbols.mode) &&
                           place_first(payload.grid.groups, context.first, n, grid);
  if (!is_possible) return std::nullopt;
  place_low_bits(levels.low_bits, scales.coded, static_cast<size_t>(payload.rest - block), grid);
  grid.coded = static_cast<uint32_t>(scales.coded);
  grid.mode = symbols.mode;
  grid.begin = static_cast<uint32_t>(symbols.payload - block);
  grid.size = static_cast<uint32_t>(symbols.size);
  grid.container = quantized::container_of(layout);
  grid.precision = quantized::precision_of(layout, payload.grid.rounding);
  grid.formula = levels.formula;
  result.levels_ = quantized::all_levels(levels);
  grid.codes = static_cast<uint32_t>(result.levels_.size());
  result.scales_.assign(scales.of_group, scales.of_group + scales.count);
  if (scales.offsets != nullptr)
    result.offsets_.assign(scales.offsets, scales.offsets + scales.count);
  result.plain_ = std::move(plain);
  return result;
} catch (const CodecError&) {
  return std::nullopt;
}

size_t DeviceGrid::size() const {
  const size_t floats = levels_.size() + scales_.size() + offsets_.size();
  return sizeof grid_ + (sizeof(float) * floats + plain_.size() + 7) / 8 * 8;
}

void DeviceGrid::write(uint64_t address, uint8_t* bytes) const {
  size_t at = sizeof grid_;
  const auto put = [&]<typename T>(const std::vector<T>& values) -> uint64_t {
    if (values.empty()) return 0;
    const size_t begin = at, size = sizeof(T) * values.size();
    std::memcpy(bytes + begin, values.data(), size);
    at += size;
    return address + begin;
  };
  cuda::Grid grid = grid_;
  grid.levels = put(levels_);
  grid.scales = put(scales_);
  grid.offsets = put(offsets_);
  grid.plain = put(plain_);
  std::memcpy(bytes, &grid, sizeof grid);
}

}  // namespace bf16codecs
