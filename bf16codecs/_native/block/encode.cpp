// Encoding of one block. A block that equals its base is `same`. With a model of differences it is
// coded as differences, unless a sample says that the items alone take less; where the frame's
// items lie on a grid, as levels and scales, if that is smaller; otherwise as planes.

#include "block/block.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "block/encode_planes.h"
#include "block/estimate.h"
#include "block/grid.h"
#include "delta/model.h"
#include "format/checksum.h"

namespace bf16codecs {
namespace {

size_t write_same(size_t width, uint8_t* out) {
  out[0] = static_cast<uint8_t>(Mode::same);
  std::fill_n(out + 1, width - 1, static_cast<uint8_t>(Mode::joined));
  return width;
}

// Encodes the items as differences to their base; returns 0 if that is larger than they are.
size_t encode_difference(const EncodeOptions& options, const BlockContext& context,
                         const uint8_t* items, size_t n, uint8_t* out) {
  const size_t width = std::min(options.layout.planes(), kMaxItemSize);
  const size_t low = context.delta->section(context.first).low, joined = width - low;
  PlaneRoom room(width, n, context.workspace);
  // The payload is written where it stays if there is no other plane.
  if (low == 0) room.payloads[0] = out + width + sizeof(uint32_t);
  CodedPlane coded[kMaxItemSize];
  const size_t capacity = joined * n - sizeof(uint32_t);
  const size_t size =
      delta::encode(*context.delta, context.base, items, context.first, n, options.is_best(),
                    context.workspace.words, room.planes + joined, room.payloads[0], capacity);
  if (size == 0) return 0;
  coded[0] = {Mode::difference, size};
  for (size_t p = 1; p < joined; ++p) coded[p] = {Mode::joined, 0};
  for (size_t p = joined; p < width; ++p) {
    coded[p] = code_plane(options, room.planes[p], n, room.payloads[p], context.workspace);
  }
  return write_block(width, n, coded, room.planes, room.payloads, out);
}

// About the size of the items' planes if each is coded alone, of samples. Items that take less than
// half of their size have nothing but zeros, or few other numbers: a few samples are enough to find
// them.
size_t size_whole(const EncodeOptions& options, const BlockContext& context, const uint8_t* items,
                  size_t n, size_t samples) {
  const size_t width = options.layout.planes();
  const PlaneRoom room(width, n, context.workspace);
  return size_alone(options.layout, items, n, width, samples, room.planes);
}

// Whether the items are likely to take less than `size` without their base.
bool is_smaller_whole(const EncodeOptions& options, const BlockContext& context,
                      const uint8_t* items, size_t n, size_t size) {
  if (options.codec == Codec::split) return false;  // which codes nothing without a base
  const size_t samples = 2 * size < options.layout.planes() * n ? 16 : 128;
  return size_whole(options, context, items, n, samples) < size;
}

// Whether the items take less than `size` as planes of which some are sparse: on a grid, each zero
// has low bits.
bool is_larger_than_sparse(const EncodeOptions& options, const BlockContext& context,
                           const uint8_t* items, size_t n, size_t size) {
  if (!may_be_sparse(options, context, n)) return false;
  const size_t width = options.layout.planes();
  const PlaneRoom room(width, n, context.workspace);
  const size_t sparse = size_sparse(options.layout, items, n, room.planes);
  // Of ternary weights, both take about as much: encoding them twice took half as long again.
  if (sparse == 0 || sparse + sparse / 64 > size) return false;
  std::vector<uint8_t> whole(block_bound(width, n));
  BlockContext trial = context;
  std::atomic<uint64_t> saved = 0;  // it counts only in the block that is kept
  trial.saved = &saved;
  return encode_planes(options, trial, items, n, whole.data(), nullptr) < size;
}

// The size that items on a grid may take: about what their planes take, and 1/64 more where all of
// these are coded. FP8 times a power of two then decodes 15 times as fast.
size_t limit_of_grid(const EncodeOptions& options, const BlockContext& context,
                     const uint8_t* items, size_t n) {
  const size_t size = size_whole(options, context, items, n, 128);
  const bool are_coded = 8 * size < 5 * options.layout.planes() * n;
  return are_coded && !options.is_best() ? size + size / 64 : size;
}

// Encodes items and their base in the smallest way: as differences, levels and scales, or planes.
size_t encode_smallest(const EncodeOptions& options, const BlockContext& context,
                       const uint8_t* items, size_t n, uint8_t* out) {
  const size_t width = options.layout.planes();
  size_t size = 0;
  if (context.base != nullptr && context.delta != nullptr) {
    size = encode_difference(options, context, items, n, out);
    if (size != 0 && is_smaller_whole(options, context, items, n, size)) size = 0;
  }
  if (context.grid != nullptr) {
    // It writes only what is smaller than the differences, which it replaces then.
    const size_t limit = size != 0 ? size : limit_of_grid(options, context, items, n);
    const size_t on_grid =
        encode_grid(options, context, items, n, out, std::min(limit, block_bound(width, n)));
    if (on_grid != 0 && size == 0 && is_larger_than_sparse(options, context, items, n, on_grid))
      return 0;
    if (on_grid != 0) return on_grid;
  }
  if (size != 0) context.saved->fetch_add(width * n - size, std::memory_order_relaxed);
  return size;
}

}  // namespace

size_t encode_block(const EncodeOptions& options, const BlockContext& context, const uint8_t* items,
                    size_t n, uint8_t* out, Checksum* sum) {
  const size_t width = options.layout.planes();
  size_t size = 0;
  if (context.base != nullptr && std::memcmp(context.base, items, width * n) == 0) {
    size = write_same(width, out);
  } else if (n >= kLeastCoded) {
    size = encode_smallest(options, context, items, n, out);
  }
  if (size == 0) return encode_planes(options, context, items, n, out, sum);
  if (sum != nullptr) sum->update(items, width * n);
  return size;
}

}  // namespace bf16codecs
