#include "block/encode_planes.h"

#include <algorithm>

#include "block/estimate.h"
#include "copy.h"
#include "format/checksum.h"
#include "format/little_endian.h"
#include "grid/keys.h"
#include "planes.h"
#include "scale/model.h"
#include "sparse/sparse.h"
#include "tiles/model.h"

namespace bf16codecs {
namespace {

// Items that are both summed and split, while they are in the first-level cache, before the next
// ones.
constexpr size_t kStrip = 4096;

// Room that the scale model's encoder needs besides, for the worst case of the items that it codes
// at a time.
constexpr size_t kModelSlack = size_t{1} << 16;

// Splits a block, and adds it to `sum` unless that is null, in one pass over the items.
void split_and_sum(const Layout& layout, const uint8_t* items, size_t n, uint8_t* const planes[],
                   Checksum* sum) {
  const size_t width = layout.planes();
  for (size_t i = 0; i < n; i += kStrip) {
    const size_t strip = std::min(kStrip, n - i);
    uint8_t* at[kMaxItemSize];
    for (size_t p = 0; p < width; ++p) at[p] = planes[p] + i;
    if (sum != nullptr) sum->update(items + width * i, width * strip);
    split_planes(layout, items + width * i, strip, at);
  }
}

// Codes the first planes with the frame's model where that is smaller than each plane alone;
// returns how many planes are done. `out` has room for all planes, and for the scale model
// kModelSlack bytes more.
size_t code_with_model(const EncodeOptions& options, const BlockContext& context,
                       const uint8_t* items, size_t n, uint8_t* const planes[], uint8_t* out,
                       CodedPlane coded[]) {
  const bool has_model = context.scale != nullptr || context.tiles != nullptr;
  if (!has_model || n < kLeastCoded) return 0;
  const size_t joined = grid::key_planes(options.layout);
  // The payload's size field takes 4 bytes: without this limit, the block would outgrow
  // block_bound() by up to 3 bytes.
  const size_t room = joined * n - sizeof(uint32_t);
  const size_t size =
      context.tiles != nullptr
          ? tiles::encode(*context.tiles, items, context.first, n, context.workspace.words, out,
                          room)
          : scale::encode(*context.scale, items, context.first, n, out, joined * n + kModelSlack);
  if (size == 0 || size > room) return 0;
  // Of two planes, counting all signs and mantissas would take as long as coding the tiles: samples
  // are counted.
  const size_t samples = context.tiles != nullptr && joined == 2 ? 128 : 0;
  const size_t alone = size_alone(options.layout, items, n, joined, samples, planes);
  if (size >= alone) return 0;
  context.saved->fetch_add(alone - size, std::memory_order_relaxed);
  coded[0] = {context.tiles != nullptr ? Mode::tiles : Mode::scale, size};
  for (size_t p = 1; p < joined; ++p) coded[p] = {Mode::joined, 0};
  return joined;
}

// Codes planes [from, width), each of them alone or, but for plane 0, given the zeros of plane 0.
void code_planes(const EncodeOptions& options, const BlockContext& context, const PlaneRoom& room,
                 size_t n, size_t from, size_t width, CodedPlane coded[]) {
  if (from >= width) return;
  const bool is_allowed = width > 1 && may_be_sparse(options, context, n);
  const sparse::Encoder zeros(room.planes[0], is_allowed ? n : 0);
  for (size_t p = from; p < width; ++p) {
    size_t size = 0;
    if (p != 0 && zeros.may_pay()) {
      size = zeros.encode(room.planes[p], room.payloads[p], context.workspace.words);
    }
    coded[p] = size != 0
                   ? CodedPlane{Mode::sparse, size}
                   : code_plane(options, room.planes[p], n, room.payloads[p], context.workspace);
  }
}

}  // namespace

PlaneRoom::PlaneRoom(size_t width, size_t n, Workspace& workspace) {
  uint8_t* const scratch = workspace.planes.at_least(2 * width * n + kModelSlack);
  for (size_t p = 0; p < width; ++p) {
    planes[p] = scratch + p * n;
    payloads[p] = planes[p] + width * n;
  }
}

size_t write_block(size_t width, size_t n, const CodedPlane coded[], uint8_t* const planes[],
                   uint8_t* const payloads[], uint8_t* out) {
  uint8_t* end = out + width;
  for (size_t p = 0; p < width; ++p) end += is_coded(coded[p].mode) ? 4 : 0;
  for (size_t p = width; p-- != 0;) {
    const bool stored = coded[p].mode == Mode::stored;
    const size_t size = stored ? n : coded[p].size;
    const uint8_t* const payload = stored ? planes[p] : payloads[p];
    end = payload != end ? copy_down(payload, size, end) : end + size;
  }
  uint8_t* sizes = out + width;
  for (size_t p = 0; p < width; ++p) {
    out[p] = static_cast<uint8_t>(coded[p].mode);
    if (!is_coded(coded[p].mode)) continue;
    store_le(sizes, static_cast<uint32_t>(coded[p].size));
    sizes += 4;
  }
  return static_cast<size_t>(end - out);
}

bool may_be_sparse(const EncodeOptions& options, const BlockContext& context, size_t n) {
  return context.version >= kFormatVersion && !options.layout.by_byte && n >= kLeastCoded &&
         (options.codec == Codec::huffman || options.codec == Codec::arithmetic);
}

size_t encode_planes(const EncodeOptions& options, const BlockContext& context,
                     const uint8_t* items, size_t n, uint8_t* out, Checksum* sum) {
  const size_t width = std::min(options.layout.planes(), kMaxItemSize);  // for GCC's warnings
  PlaneRoom room(width, n, context.workspace);
  // A payload of the tile model is written where it stays if there is no other plane. One of the
  // scale model may need the room of all planes that it codes.
  const bool is_in_place = context.tiles != nullptr && width <= 2;
  uint8_t* const modelled = is_in_place ? out + width + sizeof(uint32_t) : room.payloads[0];
  CodedPlane coded[kMaxItemSize];
  const size_t p = code_with_model(options, context, items, n, room.planes, modelled, coded);
  if (p != 0) room.payloads[0] = modelled;
  if (p == width) {
    if (sum != nullptr) sum->update(items, width * n);
  } else {
    // The last plane comes first in the block, and usually it is stored while the others are coded:
    // so it is split to where it will lie.
    if (n >= kLeastCoded) room.planes[width - 1] = out + width + 4 * (width - 1);
    split_and_sum(options.layout, items, n, room.planes, sum);
  }
  code_planes(options, context, room, n, p, width, coded);
  return write_block(width, n, coded, room.planes, room.payloads, out);
}

}  // namespace bf16codecs
