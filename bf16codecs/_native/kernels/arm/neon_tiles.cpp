// The tiles mode's kernels for NEON, without the coder. Each group of vector instructions is
// preceded by the scalar formula that it computes. Shifts by the raw bits are by registers.

#include "kernels/arm/neon_tiles.h"

#include <bit>

#include "kernels/tiles_items.h"

namespace bf16codecs {
namespace {

constexpr unsigned kQuarter = kRecordItems / 4;

// The bytes of a record's items.
struct RecordBytes {
  uint8x16_t quarter[4];
};

// A bit for each byte that is 255, not 0.
BF16CODECS_INLINE uint64_t byte_mask(const RecordBytes& bytes) {
  const uint8x16_t bits = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  uint8x16_t v[4];
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 4; ++k) v[k] = vandq_u8(bytes.quarter[k], bits);
  const uint8x16_t sums = vpaddq_u8(vpaddq_u8(v[0], v[1]), vpaddq_u8(v[2], v[3]));
  return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)), 0);
}

// The bytes in which a bit of `bits` is set.
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

void order(const uint16_t* scales, size_t n, TileOrder& order) {
  uint32_t counts[kTileClasses] = {};
  for (size_t record = 0; record < n / kRecordItems; ++record, scales += kRecordItems) {
    RecordBytes lowest;
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 4; ++k) {
      lowest.quarter[k] = vld2q_u8(reinterpret_cast<const uint8_t*>(scales + kQuarter * k)).val[0];
    }
    // bits 3 and 2, which are a class
    const uint64_t high = tested_mask(lowest, 8), low = tested_mask(lowest, 4);
    const uint64_t masks[kTileClasses] = {~high & ~low, ~high & low, high & ~low, high & low};
    BF16CODECS_UNROLL
    for (unsigned c = 0; c < kTileClasses; ++c) {
      order.mask[record][c] = masks[c];
      counts[c] += static_cast<uint32_t>(std::popcount(masks[c]));
    }
  }
  order.begin[0] = 0;
  for (unsigned c = 0; c < kTileClasses; ++c) order.begin[c + 1] = order.begin[c] + counts[c];
}

// How many bits each byte of a mask has.
BF16CODECS_INLINE uint64_t count_by_byte(uint64_t mask) {
  return vget_lane_u64(vreinterpret_u64_u8(vcnt_u8(vcreate_u8(mask))), 0);
}

// Takes a record's symbols from the classes' lists.
BF16CODECS_INLINE RecordBytes take_record(const uint64_t masks[kTileClasses],
                                          const uint8_t* next[kTileClasses]) {
  uint64_t counts[kTileClasses];
  for (unsigned c = 0; c < kTileClasses; ++c) counts[c] = count_by_byte(masks[c]);
  uint8x8_t eights[8];
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 8; ++k) {
    eights[k] = vdup_n_u8(0);
    BF16CODECS_UNROLL
    for (unsigned c = 0; c < kTileClasses; ++c) {
      const uint8x8_t places = vld1_u8(kByteTables.expand[masks[c] >> 8 * k & 255]);
      eights[k] = vorr_u8(eights[k], vtbl1_u8(vld1_u8(next[c]), places));
      next[c] += counts[c] >> 8 * k & 255;
    }
  }
  RecordBytes symbols;
  for (unsigned k = 0; k < 4; ++k) {
    symbols.quarter[k] = vcombine_u8(eights[2 * k], eights[2 * k + 1]);
  }
  return symbols;
}

BF16CODECS_INLINE RecordBytes load_record(const uint8_t* symbols) {
  RecordBytes bytes;
  for (unsigned k = 0; k < 4; ++k) bytes.quarter[k] = vld1q_u8(symbols + kQuarter * k);
  return bytes;
}

// Puts symbols, in the order of their items, in the order of the classes. What is written past a
// class's end belongs to the next one, which comes later.
void partition(const TileOrder& order, const uint8_t* symbols, size_t n, uint8_t* ordered) {
  for (unsigned c = 0; c < kTileClasses; ++c) {
    uint8_t* next = ordered + order.begin[c];
    for (size_t i = 0; i < n; i += kRecordItems) {
      const uint64_t mask = order.mask[i / kRecordItems][c], counts = count_by_byte(mask);
      BF16CODECS_UNROLL
      for (unsigned k = 0; k < kRecordItems; k += 8) {
        const uint8x8_t places = vld1_u8(kByteTables.compress[mask >> k & 255]);
        vst1_u8(next, vtbl1_u8(vld1_u8(symbols + i + k), places));
        next += counts >> k & 255;
      }
    }
  }
}

// --- raw bits ------------------------------------------------------------------------------------

BF16CODECS_INLINE int8x16_t byte_shift(int left) {
  return vdupq_n_s8(static_cast<int8_t>(left));
}
BF16CODECS_INLINE int16x8_t word_shift(int left) {
  return vdupq_n_s16(static_cast<int16_t>(left));
}

BF16CODECS_INLINE RecordBytes load_raw(const uint8_t* record, unsigned raw_bits) {
  const unsigned bits = raw_bits % 4, parts = raw_bits / 4;
  RecordBytes raw;
  for (unsigned k = 0; k < 4; ++k) raw.quarter[k] = vdupq_n_u8(0);
  for (unsigned part = 0; part < parts; ++part, record += 32) {
    // byte of item i mod 32, and of that the half of item i
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
      // bit i of the quarter's word
      const uint8x16_t word = vcombine_u8(vdup_n_u8(record[2 * k]), vdup_n_u8(record[2 * k + 1]));
      raw.quarter[k] = vorrq_u8(raw.quarter[k], vandq_u8(vtstq_u8(word, bit_of), value));
    }
  }
  return raw;
}

BF16CODECS_INLINE void store_raw(uint8_t* record, unsigned raw_bits, const RecordBytes& raw) {
  const unsigned bits = raw_bits % 4, parts = raw_bits / 4;
  for (unsigned part = 0; part < parts; ++part, record += 32) {
    // raw >> (B + 4 part) & 15, and that of the item 32 on in the upper half
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

// What a shape's keys are made with.
struct KeyMaker {
  uint16x8_t key_mask, origin;
  int16x8_t symbol_shift, scale_shift, right, left;

  explicit KeyMaker(const TileShape& shape)
      : key_mask(vdupq_n_u16(shape.key_mask)),
        origin(vdupq_n_u16(static_cast<uint16_t>(kSymbolOrigin << shape.raw_bits))),
        symbol_shift(word_shift(static_cast<int>(shape.raw_bits))),
        scale_shift(word_shift(static_cast<int>(shape.raw_bits) - 1)),
        right(word_shift(shape.to_items ? -1 : 0)),
        left(word_shift(shape.to_items ? 15 : 16)) {}

  // Eight keys, or items, of symbols and raw bits.
  BF16CODECS_INLINE void make(uint8x8_t symbols, uint8x8_t raw, const uint16_t* scales,
                              uint8_t* out) const {
    // key = (v + 8 E - 208) 2^R + raw
    const uint16x8_t whole = vandq_u16(vld1q_u16(scales), vdupq_n_u16(0xFFF0));
    const uint16x8_t scale = vsubq_u16(vshlq_u16(whole, scale_shift), origin);
    const uint16x8_t symbol = vshlq_u16(vmovl_u8(symbols), symbol_shift);
    const uint16x8_t key = vandq_u16(vaddw_u8(vaddq_u16(symbol, scale), raw), key_mask);
    const uint16x8_t rotated = vorrq_u16(vshlq_u16(key, right), vshlq_u16(key, left));
    vst1q_u8(out, vreinterpretq_u8_u16(rotated));
  }
};

void restore(const TileShape& shape, const TileItems& items, TileEscapes& escapes) {
  const bool is_ordered = shape.classes != 1;
  auto [order, symbols, scales, records, n, out] = items;
  const uint8_t* next[kTileClasses] = {};
  for (unsigned c = 0; is_ordered && c < kTileClasses; ++c) next[c] = symbols + order->begin[c];
  const KeyMaker keys(shape);
  for (size_t i = 0; i < n; i += kRecordItems, out += 2 * kRecordItems) {
    const RecordBytes v =
        is_ordered ? take_record(order->mask[i / kRecordItems], next) : load_record(symbols + i);
    const RecordBytes raw = load_raw(records, shape.raw_bits);
    records += record_size(shape.raw_bits);
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 4; ++k) {
      const uint16_t* const s = scales + i + kQuarter * k;
      uint8_t* const at = out + 2 * kQuarter * k;
      keys.make(vget_low_u8(v.quarter[k]), vget_low_u8(raw.quarter[k]), s, at);
      keys.make(vget_high_u8(v.quarter[k]), vget_high_u8(raw.quarter[k]), s + 8, at + 16);
    }
    const uint64_t escaped = zeros_mask(v);
    if (escaped != 0) [[unlikely]]
      patch_escapes(escaped, shape.to_items, escapes, out);
  }
}

// --- encoding ------------------------------------------------------------------------------------

// What a shape's keys are taken apart with.
struct KeySplitter {
  uint16x8_t first, most;
  int16x8_t right;

  explicit KeySplitter(const TileShape& shape)
      : first(vdupq_n_u16(shape.first)),
        most(vdupq_n_u16(static_cast<uint16_t>(shape.end - 1 - shape.first))),
        right(word_shift(-static_cast<int>(shape.raw_bits))) {}

  // The symbols of eight keys, 0 for escapes.
  BF16CODECS_INLINE uint16x8_t symbols(uint16x8_t keys, const uint16_t* scales) const {
    // v = (key >> R) - 8 E + 208,  if (v - lo <= hi - 1 - lo) v else 0
    const uint16x8_t scale = vshrq_n_u16(vandq_u16(vld1q_u16(scales), vdupq_n_u16(0xFFF0)), 1);
    const uint16x8_t relative = vsubq_u16(vshlq_u16(keys, right), scale);
    const uint16x8_t v = vaddq_u16(relative, vdupq_n_u16(kSymbolOrigin));
    return vandq_u16(v, vcleq_u16(vsubq_u16(v, first), most));
  }
};

BF16CODECS_INLINE uint8x16_t low_bytes(uint16x8_t v, uint16x8_t w) {
  return vuzp1q_u8(vreinterpretq_u8_u16(v), vreinterpretq_u8_u16(w));
}

uint16_t* arrange(const TileShape& shape, const TileOrder& order, const uint16_t* keys,
                  const uint16_t* scales, size_t n, uint8_t* symbols, uint8_t* records,
                  uint16_t* escapes) {
  uint8_t buffer[kMaxTileItems];
  const bool is_ordered = shape.classes != 1;
  uint8_t* const by_item = is_ordered ? buffer : symbols;
  const KeySplitter splitter(shape);
  for (size_t i = 0; i < n; i += kRecordItems, records += record_size(shape.raw_bits)) {
    RecordBytes v, raw;
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 4; ++k) {
      const size_t at = i + kQuarter * k;
      const uint16x8_t low = vld1q_u16(keys + at), high = vld1q_u16(keys + at + 8);
      v.quarter[k] =
          low_bytes(splitter.symbols(low, scales + at), splitter.symbols(high, scales + at + 8));
      raw.quarter[k] = low_bytes(low, high);
      vst1q_u8(by_item + at, v.quarter[k]);
    }
    store_raw(records, shape.raw_bits, raw);
    const uint64_t escaped = zeros_mask(v);
    if (escaped != 0) [[unlikely]]
      escapes = save_escapes(escaped, keys + i, escapes);
  }
  if (is_ordered) partition(order, buffer, n, symbols);
  return escapes;
}

}  // namespace

const TileKernels kNeonTileKernels = {
    .order = order,
    .decode = neon_tiles_decode,
    .reads_slots = false,
    .restore = restore,
    .decode_restore = nullptr,
    .arrange = arrange,
    .encode = neon_tiles_encode,
    .reads_code_slots = true,
};

}  // namespace bf16codecs
