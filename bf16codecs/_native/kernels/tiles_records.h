#pragma once

// The tiles mode's loops over records of 64 items (docs/format_tiles.md, "Tiles" and "Records"),
// for AVX2, NEON and WebAssembly, which have no instruction that expands or compresses bytes by a
// mask. They do so with byte shuffles, eight bytes at a time. Each file that includes this has a
// copy of its own, built for its instruction set.

#include <type_traits>

#include "kernels/tiles_escapes.h"

namespace bf16codecs {
namespace {

// Shuffles for a mask m of eight bytes. expand[m] gives each byte of the mask the next byte of a
// list: byte j is how many bits of m are set below bit j, or 128, for which a shuffle gives 0,
// where bit j is not set. compress[m] moves the bytes of the mask to the front: byte j is the place
// of the j-th bit that is set.
struct ByteTables {
  uint8_t expand[256][8], compress[256][8];
  uint8_t after[8];  // which AVX2 loads with the last shuffle
};

constexpr ByteTables make_byte_tables() {
  ByteTables tables{};
  for (unsigned m = 0; m < 256; ++m) {
    unsigned rank = 0;
    for (unsigned j = 0; j < 8; ++j) {
      const bool is_set = (m >> j & 1) != 0;
      tables.expand[m][j] = is_set ? static_cast<uint8_t>(rank) : 128;
      if (is_set) tables.compress[m][rank++] = static_cast<uint8_t>(j);
    }
  }
  return tables;
}

constexpr ByteTables kByteTables = make_byte_tables();

// Bits 2 and 3, which are the table class, of a record's 64 scales.
struct ClassBits {
  uint64_t low, high;
};

// Implements TileKernels::order. `class_bits` reads the class bits of 64 scales.
template <typename Read>
BF16CODECS_INLINE void order_records(const uint16_t* scales, size_t n, TileOrder& order,
                                     Read class_bits) {
  uint32_t counts[kTileClasses] = {};
  for (size_t record = 0; record < n / kRecordItems; ++record, scales += kRecordItems) {
    const auto [low, high] = class_bits(scales);
    const uint64_t masks[kTileClasses] = {~high & ~low, ~high & low, high & ~low, high & low};
    BF16CODECS_UNROLL
    for (unsigned c = 0; c < kTileClasses; ++c) {
      order.mask[record][c] = masks[c];
      counts[c] += count_bits(masks[c]);
    }
  }
  order.begin[0] = 0;
  for (unsigned c = 0; c < kTileClasses; ++c) order.begin[c + 1] = order.begin[c] + counts[c];
}

// Implements TileKernels::restore with an instruction set's `Joiner`, made of a TileShape:
//
//   load     loads the symbols of a record, where there is one class
//   take     takes those of a record of an order from the lists of the classes, which it advances:
//            next[c] is the next symbol of class c. It may read 8 bytes from each symbol on.
//   join     writes keys, or items, made of symbols, a record and scales; returns the escapes' mask
template <typename Joiner>
void restore_records(const TileShape& shape, const TileItems& items, TileEscapes& escapes) {
  const bool is_ordered = shape.classes != 1;
  auto [order, symbols, scales, records, n, out] = items;
  const uint8_t* next[kTileClasses] = {};
  for (unsigned c = 0; is_ordered && c < kTileClasses; ++c) next[c] = symbols + order->begin[c];
  const Joiner joiner(shape);
  for (size_t i = 0; i < n; i += kRecordItems, out += 2 * kRecordItems) {
    const auto v =
        is_ordered ? joiner.take(*order, i / kRecordItems, next) : joiner.load(symbols + i);
    const uint64_t escaped = joiner.join(v, records, scales + i, out);
    if (escaped != 0) [[unlikely]]
      patch_escapes(escaped, shape.to_items, escapes, out);
    records += record_size(shape.raw_bits);
  }
}

// Implements TileKernels::arrange with an instruction set's `Splitter`, made of a TileShape:
//
//   split    writes a record and the symbols, made of keys and scales; returns the escapes' mask
//   move     appends those of a record's symbols that are in a class of the order, whose end it
//            returns; may write 8 bytes after them
template <typename Splitter>
uint16_t* arrange_records(const TileShape& shape, const TileOrder& order, const uint16_t* keys,
                          const uint16_t* scales, size_t n, uint8_t* symbols, uint8_t* records,
                          uint16_t* escapes) {
  alignas(32) uint8_t buffer[kMaxTileItems];
  const bool is_ordered = shape.classes != 1;
  uint8_t* const by_item = is_ordered ? buffer : symbols;
  const Splitter splitter(shape);
  for (size_t i = 0; i < n; i += kRecordItems, records += record_size(shape.raw_bits)) {
    const uint64_t escaped = splitter.split(keys + i, scales + i, by_item + i, records);
    if (escaped != 0) [[unlikely]]
      escapes = save_escapes(escaped, keys + i, escapes);
  }
  if (!is_ordered) return escapes;
  // Class by class in ascending order: what is written past a class's end is in the place of the
  // next class, which overwrites it, or in the slack.
  for (unsigned c = 0; c < kTileClasses; ++c) {
    uint8_t* next = symbols + order.begin[c];
    for (size_t i = 0; i < n; i += kRecordItems) {
      next = splitter.move(buffer + i, order, i / kRecordItems, c, next);
    }
  }
  return escapes;
}

// Calls `kernel` with the number of raw bits as a constant, so that shifts by it have immediate
// counts, if a dtype has that number; otherwise calls `other`.
template <typename Kernel, typename Other>
auto with_raw_bits(unsigned raw_bits, Kernel kernel, Other other) {
  switch (raw_bits) {
    case 0:
      return kernel(std::integral_constant<unsigned, 0>());
    case 1:
      return kernel(std::integral_constant<unsigned, 1>());
    case 2:
      return kernel(std::integral_constant<unsigned, 2>());
    case 5:
      return kernel(std::integral_constant<unsigned, 5>());
    case 8:
      return kernel(std::integral_constant<unsigned, 8>());
    default:
      return other();
  }
}

}  // namespace
}  // namespace bf16codecs
