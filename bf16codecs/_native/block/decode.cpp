// Decoding of one block: a copy of its base, differences to it, levels and scales, or planes.

#include "block/block.h"

#include "block/decode_planes.h"
#include "block/grid.h"
#include "copy.h"
#include "delta/model.h"
#include "format/errors.h"

namespace bf16codecs {
namespace {

void check_no_sparse(size_t width, const PlaneView planes[]) {
  for (size_t i = 0; i < width; ++i) {
    if (planes[i].mode == Mode::sparse)
      throw CorruptDataError("a sparse mode in version 1, or by byte");
  }
}

// Copies a block from its base, which may be the output itself.
void decode_same(const BlockContext& context, size_t size, Output& out) {
  if (context.base == nullptr) throw CorruptDataError("a same mode without a base");
  if (out.next() != context.base) copy_down(context.base, size, out.next());
  out.advance(size);
}

// Decodes a block of differences, with the low planes of their numbers.
void decode_difference(const Layout& layout, const BlockContext& context, const PlaneView views[],
                       size_t n, const Zstd* zstd, Output& out) {
  if (context.delta == nullptr || context.base == nullptr) {
    throw CorruptDataError("a difference mode in a version without a difference model");
  }
  const size_t width = layout.planes(), low = context.delta->section(context.first).low;
  const size_t room = n + kMaxStrip;
  uint8_t* const scratch = context.workspace.planes.at_least(width * room);
  PlaneSource sources[kMaxItemSize];
  for (size_t p = 1; p < width; ++p) {
    if ((views[p].mode == Mode::joined) != (p < width - low))
      throw CorruptDataError("a joined mode out of place");
    sources[p] = decode_plane(views[p], n, zstd, scratch + p * room);
  }
  delta::Reader reader(*context.delta, context.base, views[0].payload, views[0].size, context.first,
                       n);
  size_t at = 0;
  while (const size_t strip = reader.next()) {
    const uint8_t* planes[kMaxItemSize];
    for (size_t k = 0; k < low; ++k) planes[k] = sources[width - low + k].from(at);
    reader.decode(planes, out.next());
    out.advance(strip * width);
    at += strip;
  }
}

}  // namespace

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
  } else {
    decode_planes(layout, context, views, n, zstd, out);
  }
  return out.checksum();
}

}  // namespace bf16codecs
