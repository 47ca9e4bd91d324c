// Planes are decoded to memory of the workspace, and then merged. What is usual is decoded in one
// pass, strip by strip, straight to the items: pairs over a stored or sparse plane, and tiles of
// 16-bit items.

#include "block/decode_planes.h"

#include <algorithm>
#include <cstring>

#include "format/errors.h"
#include "grid/keys.h"
#include "planes.h"
#include "rans/rans.h"
#include "scale/model.h"
#include "tiles/model.h"

namespace bf16codecs {
namespace {

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

tiles::Reader tiles_reader(const BlockContext& context, const PlaneView& view, size_t n) {
  if (context.tiles == nullptr)
    throw CorruptDataError("a tiles mode in a frame without a tile model");
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

// Decodes planes 0 and 1 of a block in the scale mode.
void decode_scale(const BlockContext& context, const PlaneView& view, size_t n,
                  uint8_t* const planes[]) {
  if (context.scale == nullptr)
    throw CorruptDataError("a scale mode in a frame without a scale model");
  scale::decode(*context.scale, view.payload, view.size, context.first, n, planes);
}

void decode_and_merge(const Layout& layout, const BlockContext& context, const PlaneView views[],
                      size_t n, const Zstd* zstd, Output& out) {
  PlanesReader reader(layout, context, views, n, zstd, out.next());
  const uint8_t* planes[kMaxItemSize];
  while (const size_t strip = reader.next(planes)) {
    merge_planes(layout, planes, strip, out.next());
    out.advance(strip * layout.planes());
  }
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

}  // namespace

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

void SparsePlanes::add(size_t plane, const PlaneView& view, size_t n, uint8_t* room) {
  readers_[plane].emplace(view.payload, view.size, n, room + kStrip);
  strips_[plane] = room;
}

void SparsePlanes::decode(size_t n, const uint8_t* planes[]) {
  for (size_t p = 1; p < kMaxItemSize; ++p) {
    if (!readers_[p]) continue;
    readers_[p]->decode(planes[0], n, strips_[p]);
    planes[p] = strips_[p];
  }
}

void SparsePlanes::finish() const {
  for (const auto& reader : readers_) {
    if (reader) reader->finish();
  }
}

PlanesReader::PlanesReader(const Layout& layout, const BlockContext& context,
                           const PlaneView views[], size_t n, const Zstd* zstd, const uint8_t* out)
    : width_(layout.planes()), n_(n) {
  const size_t room = std::max(n + kPlaneSlack, SparsePlanes::kRoom);
  uint8_t* const scratch = context.workspace.planes.at_least(width_ * room);
  uint8_t* decoded[kMaxItemSize];
  for (size_t p = 0; p < width_; ++p) decoded[p] = scratch + p * room;
  UsedNext next{nullptr, 0, out, width_ * n};
  if (views[width_ - 1].mode == Mode::stored) {
    next.read = views[width_ - 1].payload;
    next.read_size = n;
  }
  for (size_t p = 0; p < width_; ++p) {
    sources_[p] = decode_plane(views[p], n, zstd, decoded[p], next);
    if (views[p].mode == Mode::sparse) sparse_planes_.add(p, views[p], n, decoded[p]);
  }
  if (views[0].mode == Mode::tiles) decode_tiles(context, views[0], n, decoded);
  if (views[0].mode == Mode::scale) decode_scale(context, views[0], n, decoded);
}

size_t PlanesReader::next(const uint8_t* planes[]) {
  const size_t strip = std::min(kStrip, n_ - at_);
  if (strip == 0) {
    sparse_planes_.finish();
    return 0;
  }
  for (size_t p = 0; p < width_; ++p) planes[p] = sources_[p].from(at_);
  sparse_planes_.decode(strip, planes);
  at_ += strip;
  return strip;
}

void decode_planes(const Layout& layout, const BlockContext& context, const PlaneView views[],
                   size_t n, const Zstd* zstd, Output& out) {
  const bool is_rotated16 = layout.is_rotated16();
  const bool is_pairs16 = is_rotated16 && views[0].mode == Mode::rans_pairs;
  if (is_pairs16 && views[1].mode == Mode::stored) {
    decode_fused16(layout, views, n, out);
  } else if (is_pairs16 && views[1].mode == Mode::sparse) {
    decode_sparse16(layout, context, views, n, out);
  } else if (is_rotated16 && views[0].mode == Mode::tiles) {
    decode_tiles16(context, views[0], n, out);
  } else {
    decode_and_merge(layout, context, views, n, zstd, out);
  }
}

}  // namespace bf16codecs
