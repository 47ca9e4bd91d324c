// The tiles mode's kernels for NEON without the coder (docs/format_tiles.md, "Symbols and raw
// bits", "Tiles" and "Records"). A record's 64 items are handled in four quarters of 16 bytes; keys
// and scales are words, eight in a register. The loops over records are in tiles_records.h. Shifts
// by the number of raw bits take it from registers, so that one function serves all dtypes. Each
// group of vector instructions is preceded by the scalar formula that it computes.

#include "kernels/arm/neon_tiles.h"

#include "kernels/tiles_records.h"
#include "kernels/tiles_tables.h"

namespace bf16codecs {
namespace {

constexpr unsigned kQuarter = kRecordItems / 4;

// The bytes of a record's items.
struct RecordBytes {
  uint8x16_t quarter[4];
};

// A bit for each of 64 bytes that are 0 or 255: byte i keeps bit i mod 8 alone, and three additions
// of neighbours add up each eight bytes.
BF16CODECS_INLINE uint64_t byte_mask(const RecordBytes& bytes) {
  const uint8x16_t bits = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  uint8x16_t v[4];
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 4; ++k) v[k] = vandq_u8(bytes.quarter[k], bits);
  const uint8x16_t sums = vpaddq_u8(vpaddq_u8(v[0], v[1]), vpaddq_u8(v[2], v[3]));
  return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)), 0);
}

// A bit for each byte that has a bit of `bits` set.
BF16CODECS_INLINE uint64_t tested_mask(const RecordBytes& bytes, unsigned bits) {
  RecordBytes tested;
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 4; ++k) {
    tested.quarter[k] = vtstq_u8(bytes.quarter[k], vdupq_n_u8(static_cast<uint8_t>(bits)));
  }
  return byte_mask(tested);
}

BF16CODECS_INLINE uint64_t zeros_mask(const RecordBytes& bytes) {
  RecordBytes zero;
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 4; ++k) zero.quarter[k] = vceqzq_u8(bytes.quarter[k]);
  return byte_mask(zero);
}

// --- the order -----------------------------------------------------------------------------------

// Bits 2 and 3 of 64 scales. The loads part the scales' low bytes from the high ones.
BF16CODECS_INLINE ClassBits class_bits(const uint16_t* scales) {
  RecordBytes lowest;
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 4; ++k) {
    lowest.quarter[k] = vld2q_u8(reinterpret_cast<const uint8_t*>(scales + kQuarter * k)).val[0];
  }
  return {tested_mask(lowest, 4), tested_mask(lowest, 8)};
}

void order(const uint16_t* scales, size_t n, TileOrder& order) {
  order_records(scales, n, order, class_bits);
}

// The number of bits in each byte of a mask.
BF16CODECS_INLINE uint64_t count_by_byte(uint64_t mask) {
  return vget_lane_u64(vreinterpret_u64_u8(vcnt_u8(vcreate_u8(mask))), 0);
}

// --- raw bits ------------------------------------------------------------------------------------

BF16CODECS_INLINE int8x16_t byte_shift(int left) {
  return vdupq_n_s8(static_cast<int8_t>(left));
}
BF16CODECS_INLINE int16x8_t word_shift(int left) {
  return vdupq_n_s16(static_cast<int16_t>(left));
}

// Loads the raw bits of a record, a byte an item.
BF16CODECS_INLINE RecordBytes load_raw(const uint8_t* record, unsigned raw_bits) {
  const unsigned bits = raw_bits % 4, parts = raw_bits / 4;
  RecordBytes raw;
  for (unsigned k = 0; k < 4; ++k) raw.quarter[k] = vdupq_n_u8(0);
  for (unsigned part = 0; part < parts; ++part, record += 32) {
    // Item i has the low half of byte i if i < 32, otherwise the high half of byte i - 32.
    const int8x16_t shift = byte_shift(static_cast<int>(bits + 4 * part));
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 2; ++k) {
      const uint8x16_t both = vld1q_u8(record + kQuarter * k);
      const uint8x16_t low = vandq_u8(both, vdupq_n_u8(15)), high = vshrq_n_u8(both, 4);
      raw.quarter[k] = vorrq_u8(raw.quarter[k], vshlq_u8(low, shift));
      raw.quarter[k + 2] = vorrq_u8(raw.quarter[k + 2], vshlq_u8(high, shift));
    }
  }
  const uint8x16_t bit_of = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  for (unsigned bit = 0; bit < bits; ++bit, record += 8) {
    const uint8x16_t value = vdupq_n_u8(static_cast<uint8_t>(1 << bit));
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 4; ++k) {
      // Bit i of this word belongs to item i of the quarter.
      const uint8x16_t word = vcombine_u8(vdup_n_u8(record[2 * k]), vdup_n_u8(record[2 * k + 1]));
      raw.quarter[k] = vorrq_u8(raw.quarter[k], vandq_u8(vtstq_u8(word, bit_of), value));
    }
  }
  return raw;
}

// Stores raw bits as a record. The bytes are the low bytes of keys, and may have other bits above
// the raw ones.
BF16CODECS_INLINE void store_raw(uint8_t* record, unsigned raw_bits, const RecordBytes& raw) {
  const unsigned bits = raw_bits % 4, parts = raw_bits / 4;
  for (unsigned part = 0; part < parts; ++part, record += 32) {
    // (raw >> (B + 4 part) & 15) | (raw of the item 32 on >> (B + 4 part)) << 4
    const int8x16_t shift = byte_shift(-static_cast<int>(bits + 4 * part));
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 2; ++k) {
      const uint8x16_t low = vandq_u8(vshlq_u8(raw.quarter[k], shift), vdupq_n_u8(15));
      vst1q_u8(record + kQuarter * k, vsliq_n_u8(low, vshlq_u8(raw.quarter[k + 2], shift), 4));
    }
  }
  for (unsigned bit = 0; bit < bits; ++bit, record += 8) {
    vst1_u8(record, vcreate_u8(tested_mask(raw, 1u << bit)));
  }
}

// --- decoding ------------------------------------------------------------------------------------

// Puts records together: see restore_records().
struct Joiner {
  unsigned raw_bits;
  uint16x8_t key_mask, origin;
  int16x8_t symbol_shift, scale_shift, right, left;

  explicit Joiner(const TileShape& shape)
      : raw_bits(shape.raw_bits),
        key_mask(vdupq_n_u16(shape.key_mask)),
        origin(vdupq_n_u16(static_cast<uint16_t>(kSymbolOrigin << shape.raw_bits))),
        symbol_shift(word_shift(static_cast<int>(shape.raw_bits))),
        scale_shift(word_shift(static_cast<int>(shape.raw_bits) - 1)),
        right(word_shift(shape.to_items ? -1 : 0)),
        left(word_shift(shape.to_items ? 15 : 16)) {}

  // Makes eight keys, or items, of symbols and raw bits. A shift to the left by 16 gives 0, which
  // leaves keys as they are.
  BF16CODECS_INLINE void make(uint8x8_t symbols, uint8x8_t raw, const uint16_t* scales,
                              uint8_t* out) const {
    // key = (v + 8 E - 208) 2^R + raw, modulo 2^16; S without its low four bits is 16 E
    const uint16x8_t whole = vandq_u16(vld1q_u16(scales), vdupq_n_u16(0xFFF0));
    const uint16x8_t scale = vsubq_u16(vshlq_u16(whole, scale_shift), origin);
    const uint16x8_t symbol = vshlq_u16(vmovl_u8(symbols), symbol_shift);
    const uint16x8_t key = vandq_u16(vaddw_u8(vaddq_u16(symbol, scale), raw), key_mask);
    const uint16x8_t rotated = vorrq_u16(vshlq_u16(key, right), vshlq_u16(key, left));
    vst1q_u8(out, vreinterpretq_u8_u16(rotated));
  }

  BF16CODECS_INLINE RecordBytes load(const uint8_t* symbols) const {
    RecordBytes bytes;
    for (unsigned k = 0; k < 4; ++k) bytes.quarter[k] = vld1q_u8(symbols + kQuarter * k);
    return bytes;
  }

  BF16CODECS_INLINE RecordBytes take(const TileOrder& order, size_t record,
                                     const uint8_t* next[kTileClasses]) const {
    const uint64_t* const masks = order.mask[record];
    uint64_t counts[kTileClasses];
    for (unsigned c = 0; c < kTileClasses; ++c) counts[c] = count_by_byte(masks[c]);
    uint8x8_t eights[8];
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 8; ++k) {
      eights[k] = vdup_n_u8(0);
      BF16CODECS_UNROLL
      for (unsigned c = 0; c < kTileClasses; ++c) {
        const uint8x8_t indices = vld1_u8(kByteTables.expand[masks[c] >> 8 * k & 255]);
        eights[k] = vorr_u8(eights[k], vtbl1_u8(vld1_u8(next[c]), indices));
        next[c] += counts[c] >> 8 * k & 255;
      }
    }
    RecordBytes symbols;
    for (unsigned k = 0; k < 4; ++k) {
      symbols.quarter[k] = vcombine_u8(eights[2 * k], eights[2 * k + 1]);
    }
    return symbols;
  }

  BF16CODECS_INLINE uint64_t join(const RecordBytes& v, const uint8_t* record,
                                  const uint16_t* scales, uint8_t* out) const {
    const RecordBytes raw = load_raw(record, raw_bits);
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 4; ++k, scales += kQuarter, out += 2 * kQuarter) {
      make(vget_low_u8(v.quarter[k]), vget_low_u8(raw.quarter[k]), scales, out);
      make(vget_high_u8(v.quarter[k]), vget_high_u8(raw.quarter[k]), scales + 8, out + 16);
    }
    return zeros_mask(v);
  }
};

void restore(const TileShape& shape, const TileItems& items, TileEscapes& escapes) {
  restore_records<Joiner>(shape, items, escapes);
}

// --- encoding ------------------------------------------------------------------------------------

BF16CODECS_INLINE uint8x16_t low_bytes(uint16x8_t v, uint16x8_t w) {
  return vuzp1q_u8(vreinterpretq_u8_u16(v), vreinterpretq_u8_u16(w));
}

// Takes records apart: see arrange_records().
struct Splitter {
  unsigned raw_bits;
  uint16x8_t first, most;
  int16x8_t right;

  explicit Splitter(const TileShape& shape)
      : raw_bits(shape.raw_bits),
        first(vdupq_n_u16(shape.first)),
        most(vdupq_n_u16(static_cast<uint16_t>(shape.end - 1 - shape.first))),
        right(word_shift(-static_cast<int>(shape.raw_bits))) {}

  // The symbols of eight keys, 0 for escapes.
  BF16CODECS_INLINE uint16x8_t symbols(uint16x8_t keys, const uint16_t* scales) const {
    // v = (key >> R) - 8 E + 208;  v - lo <= hi - 1 - lo ? v : 0. A v below lo wraps around, and is
    // larger as an unsigned word.
    const uint16x8_t scale = vshrq_n_u16(vandq_u16(vld1q_u16(scales), vdupq_n_u16(0xFFF0)), 1);
    const uint16x8_t relative = vsubq_u16(vshlq_u16(keys, right), scale);
    const uint16x8_t v = vaddq_u16(relative, vdupq_n_u16(kSymbolOrigin));
    return vandq_u16(v, vcleq_u16(vsubq_u16(v, first), most));
  }

  BF16CODECS_INLINE uint64_t split(const uint16_t* keys, const uint16_t* scales, uint8_t* out,
                                   uint8_t* record) const {
    RecordBytes v, raw;
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 4; ++k, keys += kQuarter, scales += kQuarter) {
      const uint16x8_t low = vld1q_u16(keys), high = vld1q_u16(keys + 8);
      v.quarter[k] = low_bytes(symbols(low, scales), symbols(high, scales + 8));
      raw.quarter[k] = low_bytes(low, high);
      vst1q_u8(out + kQuarter * k, v.quarter[k]);
    }
    store_raw(record, raw_bits, raw);
    return zeros_mask(v);
  }

  // Eight symbols at a time: each store writes 8 bytes, and the next one overwrites those that are
  // not moved symbols. The counts of all bytes of the mask come from one instruction.
  BF16CODECS_INLINE uint8_t* move(const uint8_t* symbols, const TileOrder& order, size_t record,
                                  unsigned c, uint8_t* next) const {
    const uint64_t mask = order.mask[record][c];
    const uint64_t counts = count_by_byte(mask);
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < kRecordItems; k += 8) {
      const uint8x8_t indices = vld1_u8(kByteTables.compress[mask >> k & 255]);
      vst1_u8(next, vtbl1_u8(vld1_u8(symbols + k), indices));
      next += counts >> k & 255;
    }
    return next;
  }
};

uint16_t* arrange(const TileShape& shape, const TileOrder& order, const uint16_t* keys,
                  const uint16_t* scales, size_t n, uint8_t* symbols, uint8_t* records,
                  uint16_t* escapes) {
  return arrange_records<Splitter>(shape, order, keys, scales, n, symbols, records, escapes);
}

}  // namespace

const TileKernels kNeonTileKernels = {
    .order = order,
    .decode = neon_tiles_decode,
    .prepare = nullptr,
    .restore = restore,
    .decode_restore = nullptr,
    .arrange = arrange,
    .encode = neon_tiles_encode,
    .prepare_code = spell_out_code_slots,
};

}  // namespace bf16codecs
