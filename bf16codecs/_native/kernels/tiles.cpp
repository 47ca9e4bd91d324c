// The portable kernels of the tiles mode: the definition that the others are tested against. They
// implement, of docs/format_tiles.md, "Symbols and raw bits", "Table classes", "Tiles" and
// "Records", one item and one lane after the other.

#include "kernels/tiles.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "format/little_endian.h"
#include "kernels/tiles_tables.h"

namespace bf16codecs {
namespace {

constexpr uint64_t kOneInEach = 0x0101010101010101;

// A byte of 0 or 1 for each bit: byte i keeps bit i alone, at most 128, and adding 127 sets its bit
// 7 if that is not 0, without a carry into the next byte.
uint64_t spread_bits(uint8_t bits) {
  const uint64_t masked = bits * kOneInEach & 0x8040201008040201;
  return (masked + 0x7F7F7F7F7F7F7F7F) >> 7 & kOneInEach;
}

// The inverse, of bytes that are 0 or 1: the product moves bit 8 i to bit 56 + i. All 64 partial
// products are at different bits, so that nothing is carried.
uint8_t gather_bits(uint64_t bytes) {
  return static_cast<uint8_t>(bytes * 0x0102040810204080 >> 56);
}

// A class is two bits: masks of each of them give the masks of all four classes.
void order(const uint16_t* scales, size_t n, TileOrder& order) {
  uint32_t counts[kTileClasses] = {};
  for (size_t record = 0; record < n / kRecordItems; ++record, scales += kRecordItems) {
    uint8_t classes[kRecordItems];
    for (unsigned i = 0; i < kRecordItems; ++i) classes[i] = class_of(scales[i]);
    uint64_t low = 0, high = 0;  // the classes' bits
    for (unsigned i = 0; i < kRecordItems; i += 8) {
      const uint64_t eight = load_le<uint64_t>(classes + i);
      low |= uint64_t{gather_bits(eight & kOneInEach)} << i;
      high |= uint64_t{gather_bits(eight >> 1 & kOneInEach)} << i;
    }
    const uint64_t masks[kTileClasses] = {~high & ~low, ~high & low, high & ~low, high & low};
    for (unsigned c = 0; c < kTileClasses; ++c) {
      order.mask[record][c] = masks[c];
      counts[c] += static_cast<uint32_t>(std::popcount(masks[c]));
    }
  }
  order.begin[0] = 0;
  for (unsigned c = 0; c < kTileClasses; ++c) order.begin[c + 1] = order.begin[c] + counts[c];
}

// Ranges, on which the vector kernels rely: x div 4096 is 16 ... 2^20 - 1, f at most 4095 and the
// rank below f, so that `state` is below f 2^20 < 2^32 and at least 16 f. As 16 f >= 2^n, `rest` is
// at least 1, and one word takes it to 2^16 or more.
void decode(TileDecoder& d, const TileTable tables[], const uint8_t* classes, size_t steps,
            uint8_t* symbols) {
  const uint8_t* words = d.words;
  for (size_t step = 0; step < steps; ++step, symbols += kStepItems) {
    const TileTable& table = tables[classes[step]];
    uint32_t* const x = d.x + kLanesPerGroup * (step % d.groups);
    for (unsigned lane = 0; lane < kLanesPerGroup; ++lane) {
      const uint32_t slot = table.slot[x[lane] % 4096];
      const unsigned n = slot >> 24 & 7, entry = slot >> 27;
      const uint32_t state = (slot & 4095) * (x[lane] / 4096) + (slot >> 12 & 4095);
      symbols[lane_place(lane)] =
          static_cast<uint8_t>((table.symbols[entry] & 255) + (state & ((1u << n) - 1)));
      // Without a branch, which could not be predicted: about one lane in three takes a word. The
      // load is in bounds in any case, as it stays in the two bytes a symbol that `decode` may
      // read.
      const uint32_t rest = state >> n;
      const bool low = rest < kLowestState;
      x[lane] = low ? rest << 16 | load_le<uint16_t>(words) : rest;
      words += low ? 2 : 0;
    }
  }
  d.words = words;
}

// Reads the raw bits of a record's items: parts of 32 bytes with four bits of each item first, then
// parts of 8 bytes with one bit of each.
void unpack_raw(const uint8_t* record, unsigned raw_bits, uint8_t raw[kRecordItems]) {
  const unsigned bits = raw_bits % 4, parts = raw_bits / 4;
  std::fill_n(raw, kRecordItems, uint8_t{0});
  for (unsigned k = 0; k < parts; ++k, record += 32) {
    for (unsigned i = 0; i < 32; ++i) {
      raw[i] = static_cast<uint8_t>(raw[i] | (record[i] & 15) << (bits + 4 * k));
      raw[i + 32] = static_cast<uint8_t>(raw[i + 32] | (record[i] >> 4) << (bits + 4 * k));
    }
  }
  for (unsigned k = 0; k < bits; ++k, record += 8) {
    for (unsigned i = 0; i < 8; ++i) {
      uint8_t* const eight = raw + 8 * i;
      store_le(eight, load_le<uint64_t>(eight) | spread_bits(record[i]) << k);
    }
  }
}

void pack_raw(const uint8_t raw[kRecordItems], unsigned raw_bits, uint8_t* record) {
  const unsigned bits = raw_bits % 4, parts = raw_bits / 4;
  for (unsigned k = 0; k < parts; ++k, record += 32) {
    for (unsigned i = 0; i < 32; ++i) {
      const unsigned low = raw[i] >> (bits + 4 * k) & 15u, high = raw[i + 32] >> (bits + 4 * k);
      record[i] = static_cast<uint8_t>(low | high << 4);
    }
  }
  for (unsigned k = 0; k < bits; ++k, record += 8) {
    for (unsigned i = 0; i < 8; ++i) {
      record[i] = gather_bits(load_le<uint64_t>(raw + 8 * i) >> k & kOneInEach);
    }
  }
}

// The place of the next symbol of each class in a tile's order.
template <typename Byte>
struct ClassLists {
  Byte* next[kTileClasses];

  ClassLists(const TileShape& shape, const TileOrder& order, Byte* symbols) {
    const bool is_ordered = shape.classes != 1;
    for (unsigned c = 0; c < kTileClasses; ++c) {
      next[c] = symbols + (is_ordered ? order.begin[c] : 0);
    }
  }
};

uint16_t next_escape(TileEscapes& escapes) {
  if (escapes.next == escapes.end) {
    escapes.overrun = true;
    return 0;
  }
  escapes.next += 2;
  return load_le<uint16_t>(escapes.next - 2);
}

// The lists hold the symbols of each class in the order of its items: going through the items and
// taking the next symbol of each one's class undoes the order.
void restore(const TileShape& shape, const TileItems& items, TileEscapes& escapes) {
  auto [order, symbols, scales, records, n, out] = items;
  ClassLists<const uint8_t> lists(shape, *order, symbols);
  uint8_t v[kRecordItems], raw[kRecordItems];
  uint16_t keys[kRecordItems];
  const unsigned class_mask = shape.classes == 1 ? 0 : kTileClasses - 1;
  for (; n != 0; n -= kRecordItems, scales += kRecordItems, out += 2 * kRecordItems) {
    unpack_raw(records, shape.raw_bits, raw);
    records += record_size(shape.raw_bits);
    for (unsigned i = 0; i < kRecordItems; ++i) {
      v[i] = *lists.next[class_of(scales[i]) & class_mask]++;
    }
    for (unsigned i = 0; i < kRecordItems; ++i) {
      const unsigned relative = v[i] + scales[i] / kScaleFractions * 8 - kSymbolOrigin;
      keys[i] = static_cast<uint16_t>(((relative << shape.raw_bits) + raw[i]) & shape.key_mask);
    }
    // Symbol 0 stands for escapes alone: lo, the first symbol of the intervals, is at least 1.
    if (std::memchr(v, 0, kRecordItems) != nullptr) {
      for (unsigned i = 0; i < kRecordItems; ++i) {
        if (v[i] == 0) keys[i] = next_escape(escapes);
      }
    }
    for (unsigned i = 0; i < kRecordItems; ++i) {
      store_le(out + 2 * i, shape.to_items ? std::rotr(keys[i], 1) : keys[i]);
    }
  }
}

uint16_t* arrange(const TileShape& shape, const TileOrder& order, const uint16_t* keys,
                  const uint16_t* scales, size_t n, uint8_t* symbols, uint8_t* records,
                  uint16_t* escapes) {
  ClassLists<uint8_t> lists(shape, order, symbols);
  uint8_t v[kRecordItems], raw[kRecordItems];
  const unsigned class_mask = shape.classes == 1 ? 0 : kTileClasses - 1;
  const unsigned raw_mask = (1u << shape.raw_bits) - 1;
  const unsigned first = shape.first, symbols_in_use = shape.end - first;
  for (; n != 0; n -= kRecordItems, scales += kRecordItems, keys += kRecordItems) {
    for (unsigned i = 0; i < kRecordItems; ++i) {
      // Modulo 2^32: a symbol below the range wraps around, and is above it as an unsigned number.
      const unsigned relative = static_cast<unsigned>(keys[i] >> shape.raw_bits) + kSymbolOrigin -
                                scales[i] / kScaleFractions * 8;
      v[i] = static_cast<uint8_t>(relative - first < symbols_in_use ? relative : 0);
      raw[i] = static_cast<uint8_t>(keys[i] & raw_mask);
    }
    if (std::memchr(v, 0, kRecordItems) != nullptr) {
      for (unsigned i = 0; i < kRecordItems; ++i) {
        if (v[i] == 0) *escapes++ = keys[i];
      }
    }
    for (unsigned i = 0; i < kRecordItems; ++i) {
      *lists.next[class_of(scales[i]) & class_mask]++ = v[i];
    }
    pack_raw(raw, shape.raw_bits, records);
    records += record_size(shape.raw_bits);
  }
  return escapes;
}

// Ranges: once there is room, x < f 2^(20 - n), either by the test or because a word was put out,
// which leaves less than 2^16 <= f 2^(20 - n). With the symbol's n bits x is below f 2^20 < 2^32,
// so that the quotient is below 2^20 and the new x below 2^32.
void encode(TileEncoder& e, const TileCodeTable tables[], const uint8_t* classes, size_t steps,
            const uint8_t* symbols) {
  uint8_t* words = e.words;
  for (size_t step = steps; step-- != 0;) {
    const TileCodeTable& table = tables[classes[step]];
    uint32_t* const x = e.x + kLanesPerGroup * (step % e.groups);
    for (unsigned lane = kLanesPerGroup; lane-- != 0;) {
      const unsigned symbol = symbols[kStepItems * step + lane_place(lane)];
      const unsigned entry = table.entry_of[symbol];
      const uint32_t f = table.coder[entry] & 0x1FFF, n = table.coder[entry] >> 13;
      uint32_t state = x[lane];
      if (state >> (20 - n) >= f) {
        words -= 2;
        store_le(words, static_cast<uint16_t>(state));
        state >>= 16;
      }
      // The interval begins at a multiple of 2^n: symbol - base is the symbol's low n bits.
      state = state << n | (symbol & ((1u << n) - 1));
      x[lane] = state / f * 4096 + table.slot[table.first[entry] + state % f];
    }
  }
  e.words = words;
}

}  // namespace

const TileKernels kScalarTileKernels = {
    .order = order,
    .decode = decode,
    .prepare = spell_out_slots,
    .restore = restore,
    .decode_restore = nullptr,
    .arrange = arrange,
    .encode = encode,
    .prepare_code = spell_out_code_slots,
};

}  // namespace bf16codecs
