// Decoding of one block. What is usual is decoded in one pass, strip by strip, straight to the
// items: pairs over a stored plane, differences, and tiles of 16-bit items. Of all other blocks the
// planes are decoded to memory of the workspace first, and then merged.

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "block.h"
#include "format/checksum.h"
#include "format/errors.h"
#include "format/little_endian.h"
#include "grid/keys.h"
#include "huffman/huffman.h"
#include "planes.h"
#include "rans/rans.h"

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

void decode_and_merge(const Layout& layout, const BlockContext& context, const PlaneView views[],
                      size_t n, const Zstd* zstd, Output& out) {
  const size_t width = layout.planes();
  uint8_t* const scratch = context.workspace.planes.at_least(width * (n + kPlaneSlack));
  PlaneSource sources[kMaxItemSize];
  uint8_t* decoded[kMaxItemSize];
  for (size_t p = 0; p < width; ++p) decoded[p] = scratch + p * (n + kPlaneSlack);
  UsedNext next{nullptr, 0, out.next(), width * n};
  if (views[width - 1].mode == Mode::stored) {
    next.read = views[width - 1].payload;
    next.read_size = n;
  }
  for (size_t p = 0; p < width; ++p) sources[p] = decode_plane(views[p], n, zstd, decoded[p], next);
  if (is_modelled(views[0].mode)) decode_with_model(context, views[0], n, decoded);
  for (size_t i = 0; i < n; i += kStrip) {
    const uint8_t* planes[kMaxItemSize];
    for (size_t p = 0; p < width; ++p) {
      planes[p] = sources[p].symbols + (sources[p].is_repeated ? 0 : i);
    }
    const size_t items = std::min(kStrip, n - i);
    merge_planes(layout, planes, items, out.next());
    out.advance(items * width);
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

// Checks which planes are joined. Only plane 0 may have a mode of several planes. How many planes
// are joined to a difference is up to the model, and checked with it.
void check_joined(size_t width, const PlaneView planes[]) {
  const Mode first = planes[0].mode;
  const size_t joined = first == Mode::same ? width : is_modelled(first) ? 2 : 1;
  for (size_t i = 1; i < width; ++i) {
    const Mode mode = planes[i].mode;
    if (mode == Mode::same || mode == Mode::difference || is_modelled(mode)) {
      corrupt("a mode of several planes after the first one");
    }
    if (first != Mode::difference && (mode == Mode::joined) != (i < joined)) {
      corrupt("a joined mode out of place");
    }
  }
  if (first == Mode::joined) corrupt("a joined mode out of place");
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

uint32_t decode_block(const Layout& layout, const BlockContext& context, const uint8_t* block,
                      size_t size, size_t n, const Zstd* zstd, bool want_checksum, uint8_t* items) {
  PlaneView views[kMaxItemSize];
  parse_block(layout.planes(), n, block, size, views);
  Output out(items, want_checksum);
  if (layout.is_rotated16() && views[0].mode == Mode::rans_pairs && views[1].mode == Mode::stored) {
    decode_fused16(layout, views, n, out);
  } else if (views[0].mode == Mode::same) {
    decode_same(context, n * layout.planes(), out);
  } else if (views[0].mode == Mode::difference) {
    decode_difference(layout, context, views, n, zstd, out);
  } else if (layout.is_rotated16() && views[0].mode == Mode::tiles) {
    decode_tiles16(context, views[0], n, out);
  } else {
    decode_and_merge(layout, context, views, n, zstd, out);
  }
  return out.checksum();
}

}  // namespace bf16codecs
