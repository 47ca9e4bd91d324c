// The tiles mode's kernels for WebAssembly's vectors without the decoder (docs/format_tiles.md,
// "Symbols and raw bits", "Tiles" and "Records"): those that decoding needs. A record's 64 items
// are handled in four quarters of 16 bytes; keys and scales are words, eight in a vector. The loops
// over records are in tiles_records.h. Each group of vector instructions is preceded by the scalar
// formula that it computes.

#include <bit>

#include "kernels/tiles_records.h"
#include "kernels/wasm/simd128.h"

namespace bf16codecs {
namespace {

constexpr unsigned kQuarter = kRecordItems / 4;  // the items of a vector

// The bytes of a record's items.
struct RecordBytes {
  v128_t quarter[4];
};

// The highest bits of a record's bytes.
BF16CODECS_INLINE uint64_t byte_mask(const RecordBytes& bytes) {
  uint64_t mask = 0;
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 4; ++k) {
    mask |= static_cast<uint64_t>(wasm_i8x16_bitmask(bytes.quarter[k])) << kQuarter * k;
  }
  return mask;
}

BF16CODECS_INLINE uint64_t zeros_mask(const RecordBytes& bytes) {
  RecordBytes zero;
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 4; ++k) {
    zero.quarter[k] = wasm_i8x16_eq(bytes.quarter[k], wasm_i8x16_splat(0));
  }
  return byte_mask(zero);
}

// Bits 2 and 3 of 64 scales, moved to bit 7 of bytes. Shifts of words move bits from a byte into
// the next one, but not into its bit 7.
BF16CODECS_INLINE ClassBits class_bits(const uint16_t* scales) {
  RecordBytes upper, lower;  // bits 3 and 2 in bit 7
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 4; ++k) {
    const uint16_t* const s = scales + kQuarter * k;
    const v128_t bytes = even8(wasm_v128_load(s), wasm_v128_load(s + 8));
    upper.quarter[k] = wasm_i16x8_shl(bytes, 4), lower.quarter[k] = wasm_i16x8_shl(bytes, 5);
  }
  return {byte_mask(lower), byte_mask(upper)};
}

void order(const uint16_t* scales, size_t n, TileOrder& order) {
  order_records(scales, n, order, class_bits);
}

// Takes the symbols of 8 items from the lists of the classes. Each item is in one class: the
// swizzle of the others gives 0.
BF16CODECS_INLINE v128_t take8(const uint64_t masks[kTileClasses], unsigned first,
                               const uint8_t* next[kTileClasses]) {
  v128_t symbols = wasm_i8x16_splat(0);
  BF16CODECS_UNROLL
  for (unsigned c = 0; c < kTileClasses; ++c) {
    const unsigned mask = masks[c] >> first & 255;
    const v128_t indices = wasm_v128_load64_zero(kByteTables.expand[mask]);
    const v128_t list = wasm_v128_load64_zero(next[c]);
    symbols = wasm_v128_or(symbols, wasm_i8x16_swizzle(list, indices));
    next[c] += std::popcount(mask);
  }
  return symbols;
}

// The raw bits of quarter k of a record.
template <unsigned kRawBits>
BF16CODECS_INLINE v128_t load_raw(const uint8_t* record, unsigned k) {
  constexpr unsigned kBits = kRawBits % 4, kParts = kRawBits / 4;
  v128_t raw = wasm_i8x16_splat(0);
  BF16CODECS_UNROLL
  for (unsigned part = 0; part < kParts; ++part) {
    // Item i has the low half of byte i if i < 32, otherwise the high half of byte i - 32.
    const v128_t bytes = wasm_v128_load(record + 32 * part + kQuarter * (k % 2));
    const v128_t half =
        k < 2 ? wasm_v128_and(bytes, wasm_u8x16_splat(15)) : wasm_u8x16_shr(bytes, 4);
    raw = wasm_v128_or(raw, wasm_i8x16_shl(half, kBits + 4 * part));
  }
  const v128_t bit_of = wasm_u8x16_make(1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128);
  BF16CODECS_UNROLL
  for (unsigned bit = 0; bit < kBits; ++bit) {
    // Bit i of this word belongs to item i of the quarter.
    const uint8_t* const word = record + 32 * kParts + 8 * bit + 2 * k;
    const v128_t bytes = wasm_i8x16_shuffle(wasm_v128_load16_splat(word), bit_of, 0, 0, 0, 0, 0, 0,
                                            0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const v128_t is_set = wasm_i8x16_eq(wasm_v128_and(bytes, bit_of), bit_of);
    raw =
        wasm_v128_or(raw, wasm_v128_and(is_set, wasm_u8x16_splat(static_cast<uint8_t>(1 << bit))));
  }
  return raw;
}

// Puts records together: see restore_records().
template <unsigned kRawBits>
struct Joiner {
  v128_t key_mask, origin;
  uint32_t right, left;

  explicit Joiner(const TileShape& shape)
      : key_mask(wasm_u16x8_splat(shape.key_mask)),
        origin(wasm_u16x8_splat(static_cast<uint16_t>(kSymbolOrigin << kRawBits))),
        right(shape.to_items ? 1 : 0),
        left(shape.to_items ? 15 : 0) {}

  // Makes eight keys, or items, of words of symbols and raw bits.
  BF16CODECS_INLINE void make(v128_t symbols, v128_t raw, const uint16_t* scales,
                              uint8_t* out) const {
    // key = (v + 8 E - 208) 2^R + raw, modulo 2^16; S without its low four bits is 16 E
    const v128_t whole = wasm_v128_and(wasm_v128_load(scales), wasm_u16x8_splat(0xFFF0));
    const v128_t scale =
        kRawBits == 0 ? wasm_u16x8_shr(whole, 1) : wasm_i16x8_shl(whole, kRawBits - 1);
    const v128_t low = wasm_v128_or(wasm_i16x8_shl(symbols, kRawBits), raw);
    const v128_t key = wasm_v128_and(wasm_i16x8_add(low, wasm_i16x8_sub(scale, origin)), key_mask);
    // Keys that stay keys are shifted by 0 both ways: shift counts are modulo 16 here.
    wasm_v128_store(out, wasm_v128_or(wasm_u16x8_shr(key, right), wasm_i16x8_shl(key, left)));
  }

  BF16CODECS_INLINE RecordBytes load(const uint8_t* symbols) const {
    RecordBytes bytes;
    for (unsigned k = 0; k < 4; ++k) bytes.quarter[k] = wasm_v128_load(symbols + kQuarter * k);
    return bytes;
  }

  BF16CODECS_INLINE RecordBytes take(const TileOrder& order, size_t record,
                                     const uint8_t* next[kTileClasses]) const {
    const uint64_t* const masks = order.mask[record];
    RecordBytes symbols;
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 4; ++k) {
      const v128_t first = take8(masks, kQuarter * k, next);
      symbols.quarter[k] = wasm_i64x2_shuffle(first, take8(masks, kQuarter * k + 8, next), 0, 2);
    }
    return symbols;
  }

  BF16CODECS_INLINE uint64_t join(const RecordBytes& v, const uint8_t* record,
                                  const uint16_t* scales, uint8_t* out) const {
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 4; ++k, scales += kQuarter, out += 2 * kQuarter) {
      const v128_t raw = load_raw<kRawBits>(record, k);
      make(wasm_u16x8_extend_low_u8x16(v.quarter[k]), wasm_u16x8_extend_low_u8x16(raw), scales,
           out);
      make(wasm_u16x8_extend_high_u8x16(v.quarter[k]), wasm_u16x8_extend_high_u8x16(raw),
           scales + 8, out + 16);
    }
    return zeros_mask(v);
  }
};

void restore(const TileShape& shape, const TileItems& items, TileEscapes& escapes) {
  with_raw_bits(
      shape.raw_bits, [&](auto bits) { restore_records<Joiner<bits>>(shape, items, escapes); },
      [&] { kScalarTileKernels.restore(shape, items, escapes); });
}

TileKernels make_kernels() {
  TileKernels kernels = kScalarTileKernels;
  kernels.order = order;
  kernels.decode = simd128_tiles_decode;
  kernels.prepare = nullptr;
  kernels.restore = restore;
  return kernels;
}

}  // namespace

const TileKernels kSimd128TileKernels = make_kernels();

}  // namespace bf16codecs
