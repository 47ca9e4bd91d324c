// Encoding of one block. A block that equals its base is `same`. With a model of differences it is
// coded as differences, unless a sample says that the items alone take less. Otherwise its planes
// are coded: the first ones with the frame's model if that is smaller than each of them alone, all
// others one by one.

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "block.h"
#include "format/checksum.h"
#include "format/little_endian.h"
#include "grid/keys.h"
#include "histogram.h"
#include "huffman/huffman.h"
#include "planes.h"
#include "quantized/encode.h"
#include "quantized/geometry.h"
#include "quantized/inner.h"
#include "rans/frequencies.h"
#include "rans/rans.h"
#include "sparse/sparse.h"

namespace bf16codecs {
namespace {

// Items that are both summed and split, while they are in the first-level cache, before the next
// ones.
constexpr size_t kStrip = 4096;

// A plane is coded only if that saves more than 1/32 of it: less is not worth the time of decoding.
// Signs and mantissas have 7.97 bits of 8, and are stored (docs/design_codecs.md, "Which plane is
// coded, and by which table").
constexpr size_t kLeastSaving = 32;

// A coded plane has a size field of 4 bytes, and must be smaller than the plane by more than that.
constexpr size_t kCodedOverhead = 5;

// No table is smaller than a plane of fewer symbols.
constexpr size_t kLeastCoded = 64;

// Room that the scale model's encoder needs besides, for the worst case of the items that it codes
// at a time.
constexpr size_t kModelSlack = size_t{1} << 16;

bool is_constant(const uint8_t* plane, size_t n) {
  return n < 2 || std::memcmp(plane, plane + 1, n - 1) == 0;
}

struct Coded {
  Mode mode = Mode::stored;
  size_t size = 0;
};

// The counts of a plane, or of a sample of it.
struct Counts {
  uint32_t of[256];
  size_t counted;
  bool is_sample;

  Counts(const uint8_t* plane, size_t n)
      : counted(sample_histogram(plane, n, of)), is_sample(counted != n) {}

  void make_exact(const uint8_t* plane, size_t n) {
    if (is_sample) histogram(plane, n, of);
    counted = n;
    is_sample = false;
  }
  // By how much a wide table is larger than one of pairs, in units of 2^-16 bit.
  uint64_t wide_table() const {
    const auto distinct = 256 - std::count(of, of + 256, uint32_t{0});
    return (32 + static_cast<uint64_t>(distinct)) << 19;
  }
  bool may_pay() const { return entropy_size(of) >> 19 < counted - counted / kLeastSaving; }
};

// Codes the plane in the smaller one of the two modes, however little it saves.
Coded code_smallest(const Counts& counts, const uint8_t* plane, size_t n, unsigned log2_groups,
                    uint8_t* out, Scratch& words) {
  const size_t capacity = n - kCodedOverhead;
  const PairsChoice pairs = choose_pairs(counts.of, false);
  if (pairs.size != UINT64_MAX && pairs.size <= entropy_size(counts.of) + counts.wide_table()) {
    const size_t size = pairs_encode(plane, n, pairs.entries, log2_groups, out, capacity, words);
    return {Mode::rans_pairs, size};
  }
  return {Mode::rans_wide, wide_encode(plane, n, counts.of, out, capacity, words)};
}

Coded code_arithmetic(Counts& counts, const uint8_t* plane, size_t n, uint8_t* out, size_t capacity,
                      Scratch& words) {
  const PairsChoice pairs = choose_pairs(counts.of, counts.is_sample);
  if (pairs.size != UINT64_MAX &&
      pairs.size <= entropy_size(counts.of) + kWideSaving * counts.counted) {
    const size_t size = pairs_encode(plane, n, pairs.entries, groups_log2(n), out, capacity, words);
    if (size != 0) return {Mode::rans_pairs, size};
  }
  counts.make_exact(plane, n);
  return {Mode::rans_wide, wide_encode(plane, n, counts.of, out, capacity, words)};
}

// Writes the plane's payload in the mode that the codec chooses, if that is smaller than the plane.
// Sixteen symbols that are about as frequent leave no entry for those that a sample missed:
// `is_counted` counts all.
Coded code_plane(const EncodeOptions& options, const uint8_t* plane, size_t n, uint8_t* out,
                 Workspace& workspace, bool is_counted = false) {
  if (options.codec == Codec::split) return {};
  if (is_constant(plane, n)) {
    *out = *plane;
    return {Mode::constant, 1};
  }
  if (n < kLeastCoded) return {};
  const size_t capacity = n - std::max(n / kLeastSaving, kCodedOverhead);
  Coded coded;
  if (options.codec == Codec::zstd) {
    const size_t size = options.zstd->compress(plane, n, options.level, out, n - kCodedOverhead);
    coded = {Mode::zstd, size};
  } else {
    Counts counts(plane, n);
    if (is_counted) counts.make_exact(plane, n);
    if (options.is_best()) {
      counts.make_exact(plane, n);
      coded = code_smallest(counts, plane, n, groups_log2(n), out, workspace.words);
      return coded.size == 0 ? Coded{} : coded;
    }
    if (!counts.may_pay()) return {};
    if (options.codec == Codec::huffman) {
      counts.make_exact(plane, n);
      coded = {Mode::huffman,
               huffman_encode(plane, n, counts.of, out, capacity, workspace.code_pairs)};
    } else {
      coded = code_arithmetic(counts, plane, n, out, capacity, workspace.words);
    }
  }
  return coded.size == 0 ? Coded{} : coded;
}

// Consecutive items of a sample.
constexpr size_t kSampleItems = 64;

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

// Splits `samples` samples of kSampleItems items each, of a block of n items, to the beginnings of
// the planes; returns how many items they have.
size_t split_sample(const Layout& layout, const uint8_t* items, size_t n, size_t samples,
                    uint8_t* const planes[]) {
  const size_t width = layout.planes(), part = n / samples;
  for (size_t r = 0; r < samples; ++r) {
    uint8_t* at[kMaxItemSize];
    for (size_t p = 0; p < width; ++p) at[p] = planes[p] + kSampleItems * r;
    // Somewhere in its part of the block: samples at equal distances would meet the same columns
    // again and again.
    const size_t offset =
        (static_cast<uint32_t>(r * 2654435769u) >> 12) % (part - kSampleItems + 1);
    split_planes(layout, items + (part * r + offset) * width, kSampleItems, at);
  }
  return samples * kSampleItems;
}

// The approximate size of the first planes if each is coded alone: constant, stored, or by its
// order-0 entropy and the lanes' states. It is found by `samples` samples, or by all items if that
// is 0; samples make it rather too small. The planes have room for n symbols each.
size_t size_alone(const Layout& layout, const uint8_t* items, size_t n, size_t first_planes,
                  size_t samples, uint8_t* const planes[]) {
  size_t counted = n;
  if (samples != 0) {
    counted = split_sample(layout, items, n, samples, planes);
  } else {
    split_planes(layout, items, n, planes);
  }
  const size_t states = sizeof(uint32_t) * kLanesPerGroup << groups_log2(n);
  size_t size = 0;
  for (size_t p = 0; p < first_planes; ++p) {
    uint32_t counts[256];
    histogram(planes[p], counted, counts);
    const uint64_t bits = entropy_size(counts) / counted * n;
    size += bits == 0 ? 1 : std::min(n, static_cast<size_t>(bits >> 19) + states);
  }
  return size;
}

// Codes the first planes with the frame's model where that is smaller than each plane alone;
// returns how many planes are done. `out` has room for all planes, and for the scale model
// kModelSlack bytes more.
size_t code_with_model(const EncodeOptions& options, const BlockContext& context,
                       const uint8_t* items, size_t n, uint8_t* const planes[], uint8_t* out,
                       Coded coded[]) {
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
  // Of two planes, counting all signs and mantissas would take as long as coding the tiles: a
  // sample is counted.
  constexpr size_t kSampled = size_t{1} << 14, kSamples = 128;
  const bool is_sampled = context.tiles != nullptr && joined == 2 && n >= kSampled;
  const size_t alone =
      size_alone(options.layout, items, n, joined, is_sampled ? kSamples : 0, planes);
  if (size >= alone) return 0;
  context.saved->fetch_add(alone - size, std::memory_order_relaxed);
  coded[0] = {context.tiles != nullptr ? Mode::tiles : Mode::scale, size};
  for (size_t p = 1; p < joined; ++p) coded[p] = {Mode::joined, 0};
  return joined;
}

// Writes modes, sizes and payloads of a block; returns its end.
uint8_t* write_block(size_t width, size_t n, const Coded coded[], uint8_t* const planes[],
                     uint8_t* const payloads[], uint8_t* out) {
  uint8_t* end = out + width;
  for (size_t p = 0; p < width; ++p) end += is_coded(coded[p].mode) ? 4 : 0;
  for (size_t p = width; p-- != 0;) {
    const bool stored = coded[p].mode == Mode::stored;
    const size_t size = stored ? n : coded[p].size;
    const uint8_t* const payload = stored ? planes[p] : payloads[p];
    if (payload != end) std::memmove(end, payload, size);
    end += size;
  }
  uint8_t* sizes = out + width;
  for (size_t p = 0; p < width; ++p) {
    out[p] = static_cast<uint8_t>(coded[p].mode);
    if (!is_coded(coded[p].mode)) continue;
    store_le(sizes, static_cast<uint32_t>(coded[p].size));
    sizes += 4;
  }
  return end;
}

// Memory for the planes of a block and for their payloads.
struct Room {
  uint8_t* planes[kMaxItemSize];
  uint8_t* payloads[kMaxItemSize];

  Room(size_t width, size_t n, Workspace& workspace) {
    uint8_t* const scratch = workspace.planes.at_least(2 * width * n + kModelSlack);
    for (size_t p = 0; p < width; ++p) {
      planes[p] = scratch + p * n;
      payloads[p] = planes[p] + width * n;
    }
  }
};

// Whether planes after plane 0 may be sparse, and zeros are likely to make them smaller.
bool may_be_sparse(const EncodeOptions& options, const BlockContext& context, size_t n) {
  return context.version >= kFormatVersion && !options.layout.by_byte && n >= kLeastCoded &&
         (options.codec == Codec::huffman || options.codec == Codec::arithmetic);
}

// Codes planes [from, width), each of them alone or, but for plane 0, given the zeros of plane 0.
void code_planes(const EncodeOptions& options, const BlockContext& context, const Room& room,
                 size_t n, size_t from, size_t width, Coded coded[]) {
  if (from >= width) return;
  const bool is_allowed = width > 1 && may_be_sparse(options, context, n);
  const sparse::Encoder zeros(room.planes[0], is_allowed ? n : 0);
  for (size_t p = from; p < width; ++p) {
    size_t size = 0;
    if (p != 0 && zeros.may_pay()) {
      size = zeros.encode(room.planes[p], room.payloads[p], context.workspace.words);
    }
    coded[p] = size != 0
                   ? Coded{Mode::sparse, size}
                   : code_plane(options, room.planes[p], n, room.payloads[p], context.workspace);
  }
}

// Encodes the items without their base.
size_t encode_whole(const EncodeOptions& options, const BlockContext& context, const uint8_t* items,
                    size_t n, uint8_t* out, Checksum* sum) {
  const size_t width = std::min(options.layout.planes(), kMaxItemSize);  // for GCC's warnings
  Room room(width, n, context.workspace);
  // A payload of the tile model is written where it stays if there is no other plane. One of the
  // scale model may need the room of all planes that it codes.
  const bool is_in_place = context.tiles != nullptr && width <= 2;
  uint8_t* const modelled = is_in_place ? out + width + sizeof(uint32_t) : room.payloads[0];
  Coded coded[kMaxItemSize];
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
  return static_cast<size_t>(write_block(width, n, coded, room.planes, room.payloads, out) - out);
}

// Codes a plane of the scales of a block of n items, so that it decodes fast. Of a few thousand
// symbols, a wide table decodes one in 1.3 ns, Huffman in 0.6 and pairs in 0.2, and an item of the
// block takes 0.12: so in groups of 16 or 32, wide planes would take as long as a third of the
// items.
Coded code_scale_plane(const EncodeOptions& options, const uint8_t* plane, size_t groups, size_t n,
                       uint8_t* out, Workspace& workspace) {
  if (groups < kLeastCoded || is_constant(plane, groups))
    return code_plane(options, plane, groups, out, workspace);
  uint32_t counts[256];
  histogram(plane, groups, counts);
  if (options.codec == Codec::arithmetic && has_good_pairs(counts)) {
    // So few lanes as such a plane has by itself wait for each other: with twice as many, NVFP4
    // decoded in 0.19 ns an item instead of 0.21. They cost 64 bytes more.
    constexpr size_t kManyGroups = 4096;
    const unsigned log2_groups = std::max(groups_log2(groups), groups >= kManyGroups ? 1u : 0u);
    const size_t size = pairs_encode(plane, groups, choose_pairs(counts, false).entries,
                                     log2_groups, out, groups - kCodedOverhead, workspace.words);
    return size == 0 ? Coded{} : Coded{Mode::rans_pairs, size};
  }
  // Huffman only if it saves more than 1/64 bit an item.
  EncodeOptions huffman = options;
  huffman.codec = Codec::huffman;
  const Coded coded = code_plane(huffman, plane, groups, out, workspace);
  return coded.size + n / 512 < groups ? coded : Coded{};
}

// Codes it in the smallest way.
Coded code_scale_plane_best(const EncodeOptions& options, const uint8_t* plane, size_t groups,
                            uint8_t* out, Workspace& workspace) {
  EncodeOptions huffman = options;
  huffman.codec = Codec::huffman;
  const Coded shorter = code_plane(huffman, plane, groups, out, workspace);
  const Coded coded = code_plane(options, plane, groups, out, workspace);
  const bool is_shorter = coded.size == 0 || (shorter.size != 0 && shorter.size < coded.size);
  return is_shorter ? code_plane(huffman, plane, groups, out, workspace) : coded;
}

// Encodes the scales of the groups of a block of n items.
std::vector<uint8_t> encode_scales(const EncodeOptions& options, Workspace& workspace,
                                   const std::vector<uint8_t>& scales, size_t n) {
  constexpr Layout kLayout{DType::float32, false};
  constexpr size_t kWidth = sizeof(float);
  const size_t groups = scales.size() / kWidth;
  const Room room(kWidth, groups, workspace);
  split_planes(kLayout, scales.data(), groups, room.planes);
  Coded coded[kWidth];
  for (size_t p = 0; p < kWidth; ++p) {
    coded[p] =
        options.is_best()
            ? code_scale_plane_best(options, room.planes[p], groups, room.payloads[p], workspace)
            : code_scale_plane(options, room.planes[p], groups, n, room.payloads[p], workspace);
  }
  std::vector<uint8_t> block(block_bound(kWidth, groups));
  const uint8_t* const end =
      write_block(kWidth, groups, coded, room.planes, room.payloads, block.data());
  block.resize(static_cast<size_t>(end - block.data()));
  return block;
}

size_t encode_grid(const EncodeOptions& options, const BlockContext& context, const uint8_t* items,
                   size_t n, uint8_t* out, size_t capacity);

// Encodes the scales or offsets of a block of n items: as an inner grid, unless this is one, or as
// they are.
std::vector<uint8_t> encode_numbers(const EncodeOptions& options, const BlockContext& context,
                                    const std::vector<uint8_t>& numbers, size_t n) {
  if (numbers.empty()) return {};
  auto block = encode_scales(options, context.workspace, numbers, n);
  if (context.is_inner) return block;
  const size_t count = numbers.size() / sizeof(float);
  const auto found = quantized::find_inner(numbers.data(), count);
  if (!found) return block;
  EncodeOptions of_numbers = options;
  of_numbers.layout = {DType::float32, false};
  BlockContext inner{context.workspace.inner()};
  inner.grid = &*found;
  inner.is_inner = true;
  std::vector<uint8_t> grid(block.size());
  grid.resize(encode_grid(of_numbers, inner, numbers.data(), count, grid.data(), grid.size()));
  return grid.empty() ? block : grid;
}

// Encodes items without a scale as a block within the payload of another one.
std::vector<uint8_t> encode_plain(const EncodeOptions& options, Workspace& workspace,
                                  const std::vector<uint8_t>& items) {
  if (items.empty()) return {};
  const size_t width = options.layout.planes(), n = items.size() / width;
  std::vector<uint8_t> block(block_bound(width, n));
  block.resize(encode_whole(options, {workspace}, items.data(), n, block.data(), nullptr));
  return block;
}

// Codes the symbols of a grid: by Huffman instead of a wide table, if that takes at most 1/32 more.
// Where symbols are about as frequent, as the 15 of INT4 in groups of 32, pairs have no table for
// some blocks. An array of 16 MB decoded in 0.56 ns an item with wide tables, in 0.23 with Huffman,
// and takes 0.01 % more. At level `best`, a group of lanes instead of four saves 0.01 bit.
Coded code_symbols(const EncodeOptions& options, std::span<const uint8_t> symbols, uint8_t* out,
                   Workspace& workspace) {
  const size_t n = symbols.size();
  if (options.codec == Codec::arithmetic && n >= kLeastCoded && !is_constant(symbols.data(), n)) {
    Counts counts(symbols.data(), n);
    counts.make_exact(symbols.data(), n);
    if (options.is_best()) {
      const Coded coded = code_smallest(counts, symbols.data(), n, 0, out, workspace.words);
      return coded.size == 0 ? Coded{} : coded;
    }
    if (!has_good_pairs(counts.of)) {
      EncodeOptions huffman = options;
      huffman.codec = Codec::huffman;
      const Coded coded = code_plane(huffman, symbols.data(), n, out, workspace);
      const uint64_t least = entropy_size(counts.of) >> 19;
      if (coded.size != 0 && coded.size <= least + least / 32) return coded;
    }
  }
  return code_plane(options, symbols.data(), n, out, workspace, true);
}

// Encodes the items as levels times scales; returns 0 if they are not, or if that takes more than
// `capacity`.
size_t encode_grid(const EncodeOptions& options, const BlockContext& context, const uint8_t* items,
                   size_t n, uint8_t* out, size_t capacity) {
  quantized::Parts parts;
  Workspace& workspace = context.workspace;
  quantized::Found found = *context.grid;
  while (!quantized::quantize(options.layout, found, context.first, items, n, workspace, parts)) {
    const auto smaller = quantized::smaller_groups(found.grid.groups);
    if (!smaller) return 0;
    found.grid.groups = *smaller;
  }
  const auto scales = encode_numbers(options, context, parts.scales, n);
  const auto offsets = encode_numbers(options, context, parts.offsets, n);
  const auto plain = encode_plain(options, workspace, parts.plain);
  const size_t m = parts.symbols.size();
  uint8_t* const symbols = workspace.planes.at_least(m + kCodedOverhead);
  const Coded coded = code_symbols(options, parts.symbols, symbols, workspace);
  const bool is_stored = coded.mode == Mode::stored;
  const std::vector<uint8_t> mode{static_cast<uint8_t>(coded.mode)};
  const auto head = quantized::write_head(found.grid, scales.size(), offsets.size(), plain.size());
  const std::span<const uint8_t> payload[] = {
      head,
      scales,
      offsets,
      plain,
      parts.low,
      mode,
      {is_stored ? parts.symbols.data() : symbols, is_stored ? m : coded.size}};

  const size_t width = options.layout.planes();
  size_t size = 0;
  for (const auto& part : payload) size += part.size();
  if (width + sizeof(uint32_t) + size > capacity) return 0;
  out[0] = static_cast<uint8_t>(Mode::grid);
  std::fill_n(out + 1, width - 1, static_cast<uint8_t>(Mode::joined));
  store_le(out + width, static_cast<uint32_t>(size));
  uint8_t* end = out + width + sizeof(uint32_t);
  for (const auto& part : payload) end = std::copy(part.begin(), part.end(), end);
  return static_cast<size_t>(end - out);
}

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
  Room room(width, n, context.workspace);
  // The payload is written where it stays if there is no other plane.
  if (low == 0) room.payloads[0] = out + width + sizeof(uint32_t);
  Coded coded[kMaxItemSize];
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
  return static_cast<size_t>(write_block(width, n, coded, room.planes, room.payloads, out) - out);
}

// About the size of the items' planes if each is coded alone, of samples. Items that take less than
// half of their size have nothing but zeros, or few other numbers: a few samples are enough to find
// them.
size_t size_whole(const EncodeOptions& options, const BlockContext& context, const uint8_t* items,
                  size_t n, size_t samples) {
  const size_t width = options.layout.planes();
  Room room(width, n, context.workspace);
  return size_alone(options.layout, items, n, width, n < samples * kSampleItems * 2 ? 0 : samples,
                    room.planes);
}

// Whether the items are likely to take less than `size` without their base.
bool is_smaller_whole(const EncodeOptions& options, const BlockContext& context,
                      const uint8_t* items, size_t n, size_t size) {
  if (options.codec == Codec::split) return false;  // which codes nothing without a base
  const size_t samples = 2 * size < options.layout.planes() * n ? 16 : 128;
  return size_whole(options, context, items, n, samples) < size;
}

// About the size of the items' planes if those after plane 0 have no symbols for its zeros, by a
// sample; 0 if there are few zeros.
size_t size_sparse(const Layout& layout, const uint8_t* items, size_t n, Workspace& workspace) {
  constexpr size_t kSamples = 64;
  const size_t width = layout.planes();
  const Room room(width, n, workspace);
  const bool is_small = n < 2 * kSamples * kSampleItems;
  const size_t counted = is_small ? n : split_sample(layout, items, n, kSamples, room.planes);
  if (is_small) split_planes(layout, items, n, room.planes);
  uint64_t bits = 0;
  for (size_t p = 0; p < width; ++p) {
    uint32_t counts[256] = {};
    for (size_t i = 0; i < counted; ++i) {
      const bool has_symbol = p == 0 || room.planes[0][i] != 0;
      counts[room.planes[p][i]] += has_symbol ? 1 : 0;
    }
    if (p == 0 && 8 * counts[0] < counted) return 0;
    bits += entropy_size(counts) / counted * n;
  }
  return static_cast<size_t>(bits >> 19);
}

// Whether the items take less than `size` as planes of which some are sparse: codes of zeros have
// low bits, too.
bool is_larger_than_sparse(const EncodeOptions& options, const BlockContext& context,
                           const uint8_t* items, size_t n, size_t size) {
  if (!may_be_sparse(options, context, n)) return false;
  const size_t sparse = size_sparse(options.layout, items, n, context.workspace);
  if (sparse == 0 || sparse > size) return false;
  std::vector<uint8_t> whole(block_bound(options.layout.planes(), n));
  return encode_whole(options, context, items, n, whole.data(), nullptr) < size;
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
    const size_t limit = size != 0 ? size : size_whole(options, context, items, n, 128);
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
  if (size == 0) return encode_whole(options, context, items, n, out, sum);
  if (sum != nullptr) sum->update(items, width * n);
  return size;
}

}  // namespace bf16codecs
