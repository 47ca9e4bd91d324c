// Encoding of blocks in the grid mode.

#include "block/grid.h"

#include <algorithm>
#include <span>

#include "block/encode_planes.h"
#include "copy.h"
#include "format/little_endian.h"
#include "histogram.h"
#include "planes.h"
#include "quantized/encode.h"
#include "quantized/find.h"
#include "quantized/geometry.h"
#include "quantized/inner.h"
#include "rans/frequencies.h"
#include "rans/rans.h"

namespace bf16codecs {
namespace {

EncodeOptions with_huffman(EncodeOptions options) {
  options.codec = Codec::huffman;
  return options;
}

// Codes a plane of the scales of a block of n items, so that it decodes fast. Of a few thousand
// symbols, a wide table decodes one in 1.3 ns, Huffman in 0.6 and pairs in 0.2, and an item of the
// block takes 0.12: so in groups of 16 or 32, wide planes would take as long as a third of the
// items.
CodedPlane code_scale_plane(const EncodeOptions& options, const uint8_t* plane, size_t groups,
                            size_t n, uint8_t* out, Workspace& workspace) {
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
    return coded_or_stored(Mode::rans_pairs, size);
  }
  // Huffman only if it saves more than 1/64 bit an item.
  const CodedPlane coded = code_plane(with_huffman(options), plane, groups, out, workspace);
  return coded.size + n / 512 < groups ? coded : CodedPlane{};
}

// Codes it in the smallest way.
CodedPlane code_scale_plane_best(const EncodeOptions& options, const uint8_t* plane, size_t groups,
                                 uint8_t* out, Workspace& workspace) {
  const CodedPlane shorter = code_plane(with_huffman(options), plane, groups, out, workspace);
  const CodedPlane coded = code_plane(options, plane, groups, out, workspace);
  const bool is_shorter = coded.size == 0 || (shorter.size != 0 && shorter.size < coded.size);
  return is_shorter ? code_plane(with_huffman(options), plane, groups, out, workspace) : coded;
}

// Encodes the scales of the groups of a block of n items.
std::vector<uint8_t> encode_scales(const EncodeOptions& options, Workspace& workspace,
                                   const std::vector<uint8_t>& scales, size_t n) {
  constexpr size_t kWidth = sizeof(float);
  const size_t groups = scales.size() / kWidth;
  const PlaneRoom room(kWidth, groups, workspace);
  split_planes(kNumberLayout, scales.data(), groups, room.planes);
  CodedPlane coded[kWidth];
  for (size_t p = 0; p < kWidth; ++p) {
    coded[p] =
        options.is_best()
            ? code_scale_plane_best(options, room.planes[p], groups, room.payloads[p], workspace)
            : code_scale_plane(options, room.planes[p], groups, n, room.payloads[p], workspace);
  }
  std::vector<uint8_t> block(block_bound(kWidth, groups));
  block.resize(write_block(kWidth, groups, coded, room.planes, room.payloads, block.data()));
  return block;
}

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
  of_numbers.layout = kNumberLayout;
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
  block.resize(encode_planes(options, {workspace}, items.data(), n, block.data(), nullptr));
  return block;
}

// Codes the symbols of a grid: by Huffman instead of a wide table, if that takes at most 1/32 more.
// Where symbols are about as frequent, as the 15 of INT4 in groups of 32, pairs have no table for
// some blocks. An array of 16 MB decoded in 0.56 ns an item with wide tables, in 0.23 with Huffman,
// and takes 0.01 % more. At level `best`, a group of lanes instead of four saves 0.01 bit.
//
// All symbols are counted: sixteen that are about as frequent leave no entry for those that a
// sample missed.
CodedPlane code_symbols(const EncodeOptions& options, std::span<const uint8_t> symbols,
                        uint8_t* out, Workspace& workspace) {
  const uint8_t* const plane = symbols.data();
  const size_t n = symbols.size();
  if (options.codec == Codec::split || n < kLeastCoded || is_constant(plane, n))
    return code_plane(options, plane, n, out, workspace);
  PlaneCounts counts(plane, n);
  counts.make_exact(plane, n);
  if (options.is_best()) return code_smallest(counts, plane, n, 0, out, workspace.words);
  if (options.codec == Codec::arithmetic && !has_good_pairs(counts.of)) {
    const CodedPlane coded = code_counted(with_huffman(options), counts, plane, n, out, workspace);
    const uint64_t least = entropy_size(counts.of) >> 19;
    if (coded.size != 0 && coded.size <= least + least / 32) return coded;
  }
  return code_counted(options, counts, plane, n, out, workspace);
}

}  // namespace

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
  const CodedPlane coded = code_symbols(options, parts.symbols, symbols, workspace);
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
  for (const auto& part : payload) end = copy_down(part.data(), part.size(), end);
  return static_cast<size_t>(end - out);
}

}  // namespace bf16codecs
