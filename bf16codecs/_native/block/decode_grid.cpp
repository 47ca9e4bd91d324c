// Decoding of blocks in the grid mode.

#include "block/grid.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "block/decode_planes.h"
#include "format/errors.h"
#include "rans/rans.h"

namespace bf16codecs {
namespace {

// Finds the planes of a block within the payload of another one, each of which is coded alone.
void parse_inner(size_t width, size_t n, const uint8_t* block, size_t size, PlaneView views[]) {
  parse_block(width, n, block, size, views);
  for (size_t p = 0; p < width; ++p) {
    if (views[p].mode > Mode::rans_wide)
      throw CorruptDataError("a mode that no block within a grid has");
  }
}

std::vector<uint8_t> decode_plain(const Layout& layout, Workspace& workspace, const uint8_t* block,
                                  size_t size, size_t n) {
  PlaneView views[kMaxItemSize];
  parse_inner(layout.planes(), n, block, size, views);
  std::vector<uint8_t> items(layout.planes() * n);
  Output out(items.data(), false);
  decode_planes(layout, {workspace}, views, n, nullptr, out);
  return items;
}

// Decodes n numbers that are an inner grid, to memory of the inner workspace.
const uint8_t* decode_inner(const uint8_t* block, size_t size, size_t n, const BlockContext& outer,
                            const Zstd* zstd) {
  PlaneView views[kMaxItemSize];
  parse_block(sizeof(float), n, block, size, views);
  Workspace& workspace = outer.workspace.inner();
  BlockContext context{workspace};
  context.version = kFormatVersion;
  context.is_inner = true;
  uint8_t* const numbers = workspace.block.at_least(sizeof(float) * n);
  Output out(numbers, false);
  decode_grid(kNumberLayout, context, views[0], n, zstd, out);
  return numbers;
}

// Decodes scales or offsets, and calls add(planes, at, n) for strips or, of an inner grid,
// add(items, n). The numbers will be `out`.
template <typename Add>
void decode_numbers(const uint8_t* block, size_t size, size_t n, const BlockContext& context,
                    const Zstd* zstd, const float* out, Add add) {
  if (size != 0 && *block == static_cast<uint8_t>(Mode::grid) && !context.is_inner) {
    return add(decode_inner(block, size, n, context, zstd), n);
  }
  PlaneView views[kMaxItemSize];
  parse_inner(sizeof(float), n, block, size, views);
  PlanesReader reader(kNumberLayout, {context.workspace}, views, n, nullptr,
                      reinterpret_cast<const uint8_t*>(out));
  const uint8_t* planes[kMaxItemSize];
  size_t at = 0;
  while (const size_t strip = reader.next(planes)) {
    add(planes, at, strip);
    at += strip;
  }
}

// Decodes the scales and offsets of n items. They are in the workspace until the next block.
quantized::Scales decode_scales(const quantized::Payload& payload, const BlockContext& context,
                                size_t n, const Zstd* zstd) {
  const quantized::Grid& grid = payload.grid;
  const auto count = static_cast<size_t>(quantized::Bands(grid.groups, context.first, n).groups());
  const size_t numbers = grid.has_offsets() ? 2 * count : count;
  uint8_t* const room = context.workspace.values.at_least(sizeof(float) * numbers);
  quantized::Scales scales(reinterpret_cast<float*>(room), count, grid.has_offsets());
  decode_numbers(payload.scales, payload.scales_size, count, context, zstd, scales.of_group,
                 [&](auto... of) { scales.add(of...); });
  if (grid.has_offsets()) {
    decode_numbers(payload.offsets, payload.offsets_size, count, context, zstd, scales.offsets,
                   [&](auto... of) { scales.add_offsets(of...); });
  }
  scales.finish(grid, context.first, n);
  return scales;
}

// Symbols of the grid mode, decoded strip by strip where their mode can be.
class GridSymbols {
 public:
  GridSymbols(const PlaneView& view, size_t n, const Zstd* zstd, Workspace& workspace) {
    if (view.mode == Mode::rans_pairs) {
      pairs_.emplace(view.payload, view.size, n);
    } else {
      source_ = decode_plane(view, n, zstd, workspace.planes.at_least(n + kPlaneSlack));
    }
  }

  // The next `size` symbols. All but the last are whole steps.
  const uint8_t* next(size_t size) {
    if (!pairs_) {
      at_ += size;
      return source_.from(at_ - size);
    }
    const size_t steps = size / pairs_->step_symbols(), decoded = steps * pairs_->step_symbols();
    pairs_->decode(strip_, steps);
    std::copy_n(pairs_->remainder(), size - decoded, strip_ + decoded);
    return strip_;
  }
  void finish() const {
    if (pairs_) pairs_->finish();
  }

 private:
  std::optional<PairsReader> pairs_;
  PlaneSource source_{};
  size_t at_ = 0;
  uint8_t strip_[quantized::Items::kStrip + kPlaneSlack];
};

PlaneView grid_symbols(const uint8_t* bytes, size_t size, size_t n) {
  if (size == 0 || *bytes > static_cast<uint8_t>(Mode::zstd))
    quantized::corrupt("an unknown mode of symbols");
  const PlaneView view{Mode{*bytes}, bytes + 1, size - 1};
  const bool is_stored = view.mode == Mode::stored && view.size != n;
  if (is_stored || (view.mode == Mode::constant && view.size != 1))
    quantized::corrupt("symbols that do not fill the payload");
  return view;
}

// Calls decode(strip) for strips of n codes.
template <typename Decode>
void for_grid_strips(size_t n, Decode decode) {
  for (size_t i = 0; i < n; i += quantized::Items::kStrip) {
    decode(std::min(quantized::Items::kStrip, n - i));
  }
}

// Decodes coded items, and merges them with plain ones.
void decode_mixed(quantized::Items& items, GridSymbols& symbols, size_t coded, size_t width,
                  quantized::Merger& merger, Output& out) {
  std::vector<uint8_t> strip_items(width * quantized::Items::kStrip);
  uint8_t* end = out.next();
  for_grid_strips(coded, [&](size_t strip) {
    if (merger.skip(strip)) {
      items.decode(symbols.next(strip), strip, end);
      end += width * strip;
    } else {
      items.decode(symbols.next(strip), strip, strip_items.data());
      end = merger.merge(strip_items.data(), strip, end);
    }
    const auto merged = static_cast<size_t>(end - out.next());
    out.advance(merged - merged % kChecksumStripe);
  });
  out.advance(static_cast<size_t>(merger.finish(end) - out.next()));
}

}  // namespace

GridBlock read_grid(const Layout& layout, const BlockContext& context, const PlaneView& view,
                    size_t n, const Zstd* zstd) {
  if (context.version < kFormatVersion) throw CorruptDataError("a grid in a frame of version 1");
  const quantized::Payload payload =
      quantized::read_payload(layout, context.first, n, view.payload, view.size);
  const quantized::Scales scales = decode_scales(payload, context, n, zstd);
  if (scales.has_plain(n) != (payload.plain_size != 0))
    quantized::corrupt("plain items out of place");
  const unsigned low_bits = payload.grid.levels.low_bits;
  const size_t coded = scales.coded, low = quantized::packed_size(low_bits, coded);
  if (low > payload.rest_size) quantized::corrupt("a payload that is shorter than its parts");
  quantized::check_low_bits(low_bits, coded, payload.rest);
  const PlaneView symbols = grid_symbols(payload.rest + low, payload.rest_size - low, coded);
  std::vector<uint8_t> plain;
  if (scales.has_plain(n)) {
    plain = decode_plain(layout, context.workspace, payload.plain, payload.plain_size, n - coded);
  }
  return {payload, scales, std::move(plain), symbols};
}

void decode_grid(const Layout& layout, const BlockContext& context, const PlaneView& view, size_t n,
                 const Zstd* zstd, Output& out) {
  const auto [payload, scales, plain, of_symbols] = read_grid(layout, context, view, n, zstd);
  const size_t coded = scales.coded, width = layout.planes();
  GridSymbols symbols(of_symbols, coded, zstd, context.workspace);
  quantized::Items items(layout, payload.grid, scales, context.first, n, payload.rest);
  if (scales.has_plain(n)) {
    quantized::Merger merger(layout, payload.grid, scales, context.first, n, plain.data());
    decode_mixed(items, symbols, coded, width, merger, out);
  } else {
    for_grid_strips(coded, [&](size_t strip) {
      items.decode(symbols.next(strip), strip, out.next());
      out.advance(width * strip);
    });
  }
  symbols.finish();
}

}  // namespace bf16codecs
