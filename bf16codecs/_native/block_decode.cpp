// Decoding of one block. What is usual is decoded in one pass, strip by strip, straight to the
// items: pairs over a stored or sparse plane, differences, and tiles of 16-bit items. Of all other
// blocks the planes are decoded to memory of the workspace first, and then merged.

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "block.h"
#include "format/checksum.h"
#include "format/errors.h"
#include "format/little_endian.h"
#include "grid/keys.h"
#include "huffman/huffman.h"
#include "planes.h"
#include "rans/rans.h"
#include "sparse/sparse.h"

namespace bf16codecs {
namespace {

// Items that are decoded or merged between two updates of the checksum, which finds them in the
// first-level cache.
constexpr size_t kStrip = 4096;
// The most items that the difference mode decodes at a time.
constexpr size_t kMaxStrip = kStrip + kMaxLanes;

// The caller's message names the block.
[[noreturn]] void corrupt(const char* what) {
  throw CorruptDataError(what);
}

// The output of a block, whose bytes are added to the checksum as they come.
class Output {
 public:
  Output(uint8_t* items, bool want_checksum) : next_(items), want_checksum_(want_checksum) {}

  uint8_t* next() const { return next_; }
  void advance(size_t bytes) {
    if (want_checksum_) checksum_.update(next_, bytes);
    next_ += bytes;
  }
  uint32_t checksum() const { return want_checksum_ ? checksum_.value() : 0; }

 private:
  uint8_t* next_;
  bool want_checksum_;
  Checksum checksum_;
};

void decode_pairs(const PlaneView& view, uint8_t* plane, size_t n) {
  PairsReader reader(view.payload, view.size, n);
  reader.decode(plane, reader.steps());
  reader.finish();
  std::copy_n(reader.remainder(), reader.remainder_size(), plane + n - reader.remainder_size());
}

void decode_zstd(const PlaneView& view, uint8_t* plane, size_t n, const Zstd* zstd) {
  if (zstd == nullptr)
    throw CodecError("planes are coded with Zstandard, and no decompressor was given");
  zstd->decompress(view.payload, view.size, plane, n);
}

// A plane as merging reads it: strip by strip, or the same strip every time, which is enough for a
// constant plane.
struct PlaneSource {
  const uint8_t* symbols;
  bool is_repeated;
};

PlaneSource decode_plane(const PlaneView& view, size_t n, const Zstd* zstd, uint8_t* scratch,
                         const UsedNext& next) {
  switch (view.mode) {
    case Mode::stored:
      return {view.payload, false};
    case Mode::constant:
      std::memset(scratch, view.payload[0], std::min(n, kMaxStrip));
      return {scratch, true};
    case Mode::huffman:
      huffman_decode(view.payload, view.size, scratch, n, next);
      break;
    case Mode::rans_pairs:
      decode_pairs(view, scratch, n);
      break;
    case Mode::rans_wide:
      wide_decode(view.payload, view.size, scratch, n);
      break;
    case Mode::zstd:
      decode_zstd(view, scratch, n, zstd);
      break;
    case Mode::scale:
    case Mode::tiles:
    case Mode::same:
    case Mode::difference:
    case Mode::joined:
    case Mode::grid:
    case Mode::sparse:
      break;  // decoded together with other planes
  }
  return {scratch, false};
}

bool is_modelled(Mode mode) {
  return mode == Mode::scale || mode == Mode::tiles;
}

tiles::Reader tiles_reader(const BlockContext& context, const PlaneView& view, size_t n) {
  if (context.tiles == nullptr) corrupt("a tiles mode in a frame without a tile model");
  return tiles::Reader(*context.tiles, view.payload, view.size, context.first, n);
}

// Decodes planes 0 and 1 of a block in the tiles mode.
void decode_tiles(const BlockContext& context, const PlaneView& view, size_t n,
                  uint8_t* const planes[]) {
  tiles::Reader reader = tiles_reader(context, view, n);
  const bool has_low = grid::key_planes(context.tiles->layout()) == 2;
  uint8_t keys[2 * tiles::kMaxDecoded];
  size_t at = 0;
  while (const size_t decoded = reader.decode(false, keys)) {
    uint8_t* const high = planes[0] + at;
    if (has_low) {
      uint8_t* const low = planes[1] + at;
      for (size_t i = 0; i < decoded; ++i) low[i] = keys[2 * i], high[i] = keys[2 * i + 1];
    } else {
      for (size_t i = 0; i < decoded; ++i) high[i] = keys[2 * i];
    }
    at += decoded;
  }
}

// Decodes a block of 16-bit items in the tiles mode, which has no other planes.
void decode_tiles16(const BlockContext& context, const PlaneView& view, size_t n, Output& out) {
  tiles::Reader reader = tiles_reader(context, view, n);
  while (const size_t decoded = reader.decode(true, out.next())) out.advance(2 * decoded);
}

// Decodes planes 0 and 1 of a block that the frame's model describes.
void decode_with_model(const BlockContext& context, const PlaneView& view, size_t n,
                       uint8_t* const planes[]) {
  if (view.mode == Mode::tiles) return decode_tiles(context, view, n, planes);
  if (context.scale == nullptr) corrupt("a scale mode in a frame without a scale model");
  scale::decode(*context.scale, view.payload, view.size, context.first, n, planes);
}

// The planes of a block that are sparse, which are decoded strip by strip.
class SparsePlanes {
 public:
  // Memory that each of them needs.
  static constexpr size_t kRoom = kStrip + sparse::Reader::kRoom;

  void add(size_t plane, const PlaneView& view, size_t n, uint8_t* room) {
    readers_[plane].emplace(view.payload, view.size, n, room + kStrip);
    strips_[plane] = room;
  }
  // Puts the next n symbols of each, at most kStrip, into planes, of which the first has its own.
  void decode(size_t n, const uint8_t* planes[]) {
    for (size_t p = 1; p < kMaxItemSize; ++p) {
      if (!readers_[p]) continue;
      readers_[p]->decode(planes[0], n, strips_[p]);
      planes[p] = strips_[p];
    }
  }
  void finish() const {
    for (const auto& reader : readers_) {
      if (reader) reader->finish();
    }
  }

 private:
  static_assert(kStrip <= sparse::kMostDecoded);
  std::optional<sparse::Reader> readers_[kMaxItemSize];
  uint8_t* strips_[kMaxItemSize];
};

// Decodes planes, and calls merge(planes, items) strip by strip. The items will be `out`.
template <typename Merge>
void decode_strips(const Layout& layout, const BlockContext& context, const PlaneView views[],
                   size_t n, const Zstd* zstd, const uint8_t* out, Merge merge) {
  const size_t width = layout.planes();
  const size_t room = std::max(n + kPlaneSlack, SparsePlanes::kRoom);
  uint8_t* const scratch = context.workspace.planes.at_least(width * room);
  PlaneSource sources[kMaxItemSize];
  SparsePlanes sparse_planes;
  uint8_t* decoded[kMaxItemSize];
  for (size_t p = 0; p < width; ++p) decoded[p] = scratch + p * room;
  UsedNext next{nullptr, 0, out, width * n};
  if (views[width - 1].mode == Mode::stored) {
    next.read = views[width - 1].payload;
    next.read_size = n;
  }
  for (size_t p = 0; p < width; ++p) {
    sources[p] = decode_plane(views[p], n, zstd, decoded[p], next);
    if (views[p].mode == Mode::sparse) sparse_planes.add(p, views[p], n, decoded[p]);
  }
  if (is_modelled(views[0].mode)) decode_with_model(context, views[0], n, decoded);
  for (size_t i = 0; i < n; i += kStrip) {
    const uint8_t* planes[kMaxItemSize];
    for (size_t p = 0; p < width; ++p) {
      planes[p] = sources[p].symbols + (sources[p].is_repeated ? 0 : i);
    }
    const size_t items = std::min(kStrip, n - i);
    sparse_planes.decode(items, planes);
    merge(planes, items);
  }
  sparse_planes.finish();
}

void decode_and_merge(const Layout& layout, const BlockContext& context, const PlaneView views[],
                      size_t n, const Zstd* zstd, Output& out) {
  const auto merge = [&](const uint8_t* const planes[], size_t items) {
    merge_planes(layout, planes, items, out.next());
    out.advance(items * layout.planes());
  };
  decode_strips(layout, context, views, n, zstd, out.next(), merge);
}

// Decodes the usual block in one pass: a coded exponent plane over a stored plane.
void decode_fused16(const Layout& layout, const PlaneView views[], size_t n, Output& out) {
  PairsReader reader(views[0].payload, views[0].size, n);
  const size_t strip = kStrip / reader.step_symbols();
  const uint8_t* low = views[1].payload;
  for (size_t left = reader.steps(); left != 0;) {
    const size_t steps = std::min(left, strip), items = steps * reader.step_symbols();
    reader.decode16(low, out.next(), steps);
    out.advance(2 * items);
    low += items;
    left -= steps;
  }
  reader.finish();
  const uint8_t* const rest[] = {reader.remainder(), low};
  merge_planes(layout, rest, reader.remainder_size(), out.next());
  out.advance(2 * reader.remainder_size());
}

// Decodes a coded exponent plane and a sparse one in one pass.
void decode_sparse16(const Layout& layout, const BlockContext& context, const PlaneView views[],
                     size_t n, Output& out) {
  PairsReader reader(views[0].payload, views[0].size, n);
  uint8_t* const room = context.workspace.planes.at_least(kStrip + SparsePlanes::kRoom);
  SparsePlanes low;
  low.add(1, views[1], n, room + kStrip);
  const auto merge = [&](const uint8_t* high, size_t items) {
    const uint8_t* planes[kMaxItemSize] = {high};
    low.decode(items, planes);
    merge_planes(layout, planes, items, out.next());
    out.advance(2 * items);
  };
  const size_t strip = kStrip / reader.step_symbols();
  for (size_t left = reader.steps(); left != 0;) {
    const size_t steps = std::min(left, strip);
    reader.decode(room, steps);
    merge(room, steps * reader.step_symbols());
    left -= steps;
  }
  reader.finish();
  merge(reader.remainder(), reader.remainder_size());
  low.finish();
}

// Copies a block from its base, which may be the output itself.
void decode_same(const BlockContext& context, size_t size, Output& out) {
  if (context.base == nullptr) corrupt("a same mode without a base");
  if (out.next() != context.base) std::memcpy(out.next(), context.base, size);
  out.advance(size);
}

// Decodes a block of differences, with the low planes of their numbers.
void decode_difference(const Layout& layout, const BlockContext& context, const PlaneView views[],
                       size_t n, const Zstd* zstd, Output& out) {
  if (context.delta == nullptr || context.base == nullptr) {
    corrupt("a difference mode in a version without a difference model");
  }
  const size_t width = layout.planes(), low = context.delta->section(context.first).low;
  uint8_t* const scratch = context.workspace.planes.at_least(width * (n + kMaxStrip));
  PlaneSource sources[kMaxItemSize];
  for (size_t p = 1; p < width; ++p) {
    if ((views[p].mode == Mode::joined) != (p < width - low)) corrupt("a joined mode out of place");
    sources[p] = decode_plane(views[p], n, zstd, scratch + p * (n + kMaxStrip), {});
  }
  delta::Reader reader(*context.delta, context.base, views[0].payload, views[0].size, context.first,
                       n);
  size_t at = 0;
  while (const size_t strip = reader.next()) {
    const uint8_t* planes[kMaxItemSize];
    for (size_t k = 0; k < low; ++k) {
      const PlaneSource& source = sources[width - low + k];
      planes[k] = source.symbols + (source.is_repeated ? 0 : at);
    }
    reader.decode(planes, out.next());
    out.advance(strip * width);
    at += strip;
  }
}

// Decodes a block whose planes are coded alone, or sparse.
void decode_planes(const Layout& layout, const BlockContext& context, const PlaneView views[],
                   size_t n, const Zstd* zstd, Output& out) {
  const bool is_pairs16 = layout.is_rotated16() && views[0].mode == Mode::rans_pairs;
  if (is_pairs16 && views[1].mode == Mode::stored) {
    decode_fused16(layout, views, n, out);
  } else if (is_pairs16 && views[1].mode == Mode::sparse) {
    decode_sparse16(layout, context, views, n, out);
  } else {
    decode_and_merge(layout, context, views, n, zstd, out);
  }
}

// Finds the planes of a block within the payload of another one, each of which is coded alone.
void parse_inner(size_t width, size_t n, const uint8_t* block, size_t size, PlaneView views[]) {
  parse_block(width, n, block, size, views);
  for (size_t p = 0; p < width; ++p) {
    if (views[p].mode > Mode::rans_wide) corrupt("a mode that no block within a grid has");
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

void decode_grid(const Layout& layout, const BlockContext& context, const PlaneView& view, size_t n,
                 const Zstd* zstd, Output& out);

// Decodes scales or offsets, which may be an inner grid, and calls add(planes, at, n) for strips.
// The numbers will be `out`.
template <typename Add>
void decode_numbers(const uint8_t* block, size_t size, size_t n, const BlockContext& context,
                    const Zstd* zstd, const float* out, Add add) {
  constexpr Layout kLayout{DType::float32, false};
  constexpr size_t kWidth = sizeof(float);
  PlaneView views[kMaxItemSize];
  if (size != 0 && *block == static_cast<uint8_t>(Mode::grid) && !context.is_inner) {
    parse_block(kWidth, n, block, size, views);
    Workspace& workspace = context.workspace.inner();
    BlockContext inner{workspace};
    inner.version = kFormatVersion;
    inner.is_inner = true;
    uint8_t* const numbers = workspace.block.at_least(kWidth * n);
    Output decoded(numbers, false);
    decode_grid(kLayout, inner, views[0], n, zstd, decoded);
    uint8_t* const bytes = workspace.planes.at_least(kWidth * n);
    uint8_t* planes[kMaxItemSize];
    for (size_t p = 0; p < kWidth; ++p) planes[p] = bytes + p * n;
    split_planes(kLayout, numbers, n, planes);
    return add(planes, 0, n);
  }
  parse_inner(kWidth, n, block, size, views);
  size_t at = 0;
  decode_strips(kLayout, {context.workspace}, views, n, nullptr,
                reinterpret_cast<const uint8_t*>(out),
                [&](const uint8_t* const planes[], size_t strip) {
                  add(planes, at, strip);
                  at += strip;
                });
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
                 [&](const uint8_t* const planes[], size_t at, size_t strip) {
                   scales.add(planes, at, strip);
                 });
  if (grid.has_offsets()) {
    decode_numbers(payload.offsets, payload.offsets_size, count, context, zstd, scales.offsets,
                   [&](const uint8_t* const planes[], size_t at, size_t strip) {
                     scales.add_offsets(planes, at, strip);
                   });
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
      source_ = decode_plane(view, n, zstd, workspace.planes.at_least(n + kPlaneSlack), {});
    }
  }

  // The next `size` symbols. All but the last are whole steps.
  const uint8_t* next(size_t size) {
    if (!pairs_) {
      const uint8_t* const symbols = source_.symbols;
      if (!source_.is_repeated) source_.symbols += size;
      return symbols;
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
  uint8_t strip_[quantized::Items::kStrip + kPlaneSlack];
};

PlaneView grid_symbols(const uint8_t* bytes, size_t size, size_t n) {
  if (size == 0 || *bytes > static_cast<uint8_t>(Mode::zstd))
    corrupt("grid: an unknown mode of symbols");
  const PlaneView view{Mode{*bytes}, bytes + 1, size - 1};
  const bool is_stored = view.mode == Mode::stored && view.size != n;
  if (is_stored || (view.mode == Mode::constant && view.size != 1))
    corrupt("grid: symbols that do not fill the payload");
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
    items.decode(symbols.next(strip), strip, strip_items.data());
    end = merger.merge(strip_items.data(), strip, end);
    const auto merged = static_cast<size_t>(end - out.next());
    out.advance(merged - merged % kChecksumStripe);
  });
  out.advance(static_cast<size_t>(merger.finish(end) - out.next()));
}

// Decodes a block of levels times scales.
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

// Checks which planes are joined. Only plane 0 may have a mode of several planes. How many planes
// are joined to a difference is up to the model, and checked with it.
void check_joined(size_t width, const PlaneView planes[]) {
  const Mode first = planes[0].mode;
  const bool is_whole = first == Mode::same || first == Mode::grid;
  const size_t joined = is_whole ? width : is_modelled(first) ? 2 : 1;
  for (size_t i = 1; i < width; ++i) {
    const Mode mode = planes[i].mode;
    if (mode == Mode::same || mode == Mode::difference || mode == Mode::grid || is_modelled(mode)) {
      corrupt("a mode of several planes after the first one");
    }
    if (first != Mode::difference && (mode == Mode::joined) != (i < joined)) {
      corrupt("a joined mode out of place");
    }
  }
  if (first == Mode::joined) corrupt("a joined mode out of place");
}

// Checks that sparse planes come after a plane 0 whose symbols are decoded.
void check_sparse(size_t width, const PlaneView planes[]) {
  const Mode first = planes[0].mode;
  const bool is_allowed = first != Mode::scale && first != Mode::same && first != Mode::difference;
  for (size_t i = 0; i < width; ++i) {
    if (planes[i].mode == Mode::sparse && (i == 0 || !is_allowed)) {
      corrupt("a sparse mode out of place");
    }
  }
}

void check_no_sparse(size_t width, const PlaneView planes[]) {
  for (size_t i = 0; i < width; ++i) {
    if (planes[i].mode == Mode::sparse) corrupt("a sparse mode in version 1, or by byte");
  }
}

}  // namespace

void parse_block(size_t width, size_t n, const uint8_t* block, size_t size, PlaneView planes[]) {
  const uint8_t* p = block;
  const uint8_t* const end = block + size;
  if (size < width) corrupt("it is shorter than its modes");
  for (size_t i = 0; i < width; ++i) {
    if (*p >= kModes) corrupt("an unknown mode");
    planes[i].mode = Mode{*p++};
  }
  check_joined(width, planes);
  check_sparse(width, planes);
  for (size_t i = 0; i < width; ++i) {
    const Mode mode = planes[i].mode;
    planes[i].size = mode == Mode::stored ? n : mode == Mode::constant ? 1 : 0;
    if (!is_coded(planes[i].mode)) continue;
    if (end - p < 4) corrupt("it is shorter than its sizes");
    planes[i].size = load_le<uint32_t>(p);
    p += 4;
  }
  for (size_t i = width; i-- != 0;) {
    if (planes[i].size > static_cast<size_t>(end - p)) corrupt("a plane past its end");
    planes[i].payload = p;
    p += planes[i].size;
  }
  if (p != end) corrupt("bytes after its last plane");
}

GridBlock read_grid(const Layout& layout, const BlockContext& context, const PlaneView& view,
                    size_t n, const Zstd* zstd) {
  if (context.version < kFormatVersion) corrupt("a grid in a frame of version 1");
  const quantized::Payload payload =
      quantized::read_payload(layout, context.first, n, view.payload, view.size);
  const quantized::Scales scales = decode_scales(payload, context, n, zstd);
  if (scales.has_plain(n) != (payload.plain_size != 0)) corrupt("grid: plain items out of place");
  const unsigned low_bits = payload.grid.levels.low_bits;
  const size_t coded = scales.coded, low = quantized::packed_size(low_bits, coded);
  if (low > payload.rest_size) corrupt("grid: a payload that is shorter than its parts");
  quantized::check_low_bits(low_bits, coded, payload.rest);
  const PlaneView symbols = grid_symbols(payload.rest + low, payload.rest_size - low, coded);
  std::vector<uint8_t> plain;
  if (scales.has_plain(n)) {
    plain = decode_plain(layout, context.workspace, payload.plain, payload.plain_size, n - coded);
  }
  return {payload, scales, std::move(plain), symbols};
}

uint32_t decode_block(const Layout& layout, const BlockContext& context, const uint8_t* block,
                      size_t size, size_t n, const Zstd* zstd, bool want_checksum, uint8_t* items) {
  PlaneView views[kMaxItemSize];
  parse_block(layout.planes(), n, block, size, views);
  if (context.version == kFirstVersion || layout.by_byte) check_no_sparse(layout.planes(), views);
  Output out(items, want_checksum);
  if (views[0].mode == Mode::same) {
    decode_same(context, n * layout.planes(), out);
  } else if (views[0].mode == Mode::difference) {
    decode_difference(layout, context, views, n, zstd, out);
  } else if (views[0].mode == Mode::grid) {
    decode_grid(layout, context, views[0], n, zstd, out);
  } else if (layout.is_rotated16() && views[0].mode == Mode::tiles) {
    decode_tiles16(context, views[0], n, out);
  } else {
    decode_planes(layout, context, views, n, zstd, out);
  }
  return out.checksum();
}

}  // namespace bf16codecs
