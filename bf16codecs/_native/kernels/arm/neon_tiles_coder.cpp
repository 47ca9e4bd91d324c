// The tiles mode's rANS coder for NEON (docs/format_tiles.md, "Table classes" and "Tiles"). The
// states are those of neon_lanes.h; 16 lanes, two octets, are decoded at a time, octets 0 and 1
// with the even symbols, octets 2 and 3 with the odd ones. A row of 32 bytes is two registers, in
// which one instruction looks 16 bytes up; a look-up of words is two of bytes. Each group of vector
// instructions is preceded by the scalar formula that it computes.

#include "kernels/arm/neon_lanes.h"
#include "kernels/arm/neon_tiles.h"
#include "kernels/tiles_decode.h"

namespace bf16codecs {
namespace {

// A byte for each of 32 entries.
using Row = uint8x16x2_t;

// A word for each of 32 entries, its bytes apart.
struct WordRow {
  Row low, high;
};

BF16CODECS_INLINE WordRow make_word_row(const uint16_t words[kTileEntries]) {
  const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(words);
  const uint8x16x2_t first = vld2q_u8(bytes), last = vld2q_u8(bytes + 32);
  WordRow row;
  row.low.val[0] = first.val[0], row.low.val[1] = last.val[0];
  row.high.val[0] = first.val[1], row.high.val[1] = last.val[1];
  return row;
}

// Words of 16 lanes.
struct Words {
  uint16x8_t v[2];
};

// Makes words of their low and high bytes.
BF16CODECS_INLINE Words zip(uint8x16_t low, uint8x16_t high) {
  return {{vreinterpretq_u16_u8(vzip1q_u8(low, high)), vreinterpretq_u16_u8(vzip2q_u8(low, high))}};
}

BF16CODECS_INLINE Words look_up(const WordRow& row, uint8x16_t entries) {
  return zip(vqtbl2q_u8(row.low, entries), vqtbl2q_u8(row.high, entries));
}

BF16CODECS_INLINE uint8x16_t low_bytes(uint16x8_t v, uint16x8_t w) {
  return vuzp1q_u8(vreinterpretq_u8_u16(v), vreinterpretq_u8_u16(w));
}

// f and n of eight lanes.
struct Coder {
  uint16x8_t f;
  int16x8_t n;

  BF16CODECS_INLINE explicit Coder(uint16x8_t words)
      : f(vandq_u16(words, vdupq_n_u16(0x1FFF))),
        n(vreinterpretq_s16_u16(vshrq_n_u16(words, 13))) {}
};

// --- decoding ------------------------------------------------------------------------------------

struct DecodingRows {
  Row threshold, alias, base, mask;
  WordRow shift, coder;

  explicit DecodingRows(const TileTable& table) {
    const WordRow buckets = make_word_row(table.alias), symbols = make_word_row(table.symbols);
    threshold = buckets.high, alias = buckets.low;
    mask = symbols.high, base = symbols.low;
    shift = make_word_row(table.shift);
    coder = make_word_row(table.coder);
  }
};

// x = f (x div 4096) + r, of four lanes, below 2^32; see the ranges in tiles.cpp
BF16CODECS_INLINE uint32x4_t advance(uint32x4_t x, uint16x4_t f, uint16x4_t r) {
  return vmlaq_u32(vmovl_u16(r), vshrq_n_u32(x, 12), vmovl_u16(f));
}

// x = x div 2^n
BF16CODECS_INLINE uint32x4_t shift_out(uint32x4_t x, int16x4_t n) {
  return vshlq_u32(x, vnegq_s32(vmovl_s16(n)));
}

// Takes symbols off eight states; returns the states' low halves before the n bits were shifted
// out.
BF16CODECS_INLINE uint16x8_t decode_octet(Octet& x, const Coder& coder, uint16x8_t r) {
  const uint32x4_t v = advance(first_four(x), vget_low_u16(coder.f), vget_low_u16(r));
  const uint32x4_t w = advance(last_four(x), vget_high_u16(coder.f), vget_high_u16(r));
  x = make_octet(shift_out(v, vget_low_s16(coder.n)), shift_out(w, vget_high_s16(coder.n)));
  return lower_halves(v, w);
}

// Decodes 16 symbols.
BF16CODECS_INLINE uint8x16_t decode_16(const DecodingRows& t, Octet x[2]) {
  // b = x mod 32,  p = x div 32 mod 128: the narrowing shift keeps bits 5 ... 12
  const uint8x16_t b = vandq_u8(low_bytes(x[0].low, x[1].low), vdupq_n_u8(31));
  const uint8x16_t p =
      vandq_u8(vcombine_u8(vshrn_n_u16(x[0].low, 5), vshrn_n_u16(x[1].low, 5)), vdupq_n_u8(127));
  // lent = p >= threshold[b],  entry = lent ? alias[b] : b,  rank = p + (lent ? shift[b] : 0)
  const uint8x16_t lent = vcgeq_u8(p, vqtbl2q_u8(t.threshold, b));
  const uint8x16_t entries = vbslq_u8(lent, vqtbl2q_u8(t.alias, b), b);
  const Words shift =
      zip(vandq_u8(lent, vqtbl2q_u8(t.shift.low, b)), vandq_u8(lent, vqtbl2q_u8(t.shift.high, b)));

  const Words coder = look_up(t.coder, entries);
  const uint16x8_t v = decode_octet(x[0], Coder(coder.v[0]), vaddw_u8(shift.v[0], vget_low_u8(p)));
  const uint16x8_t w = decode_octet(x[1], Coder(coder.v[1]), vaddw_high_u8(shift.v[1], p));
  // symbol = base + x mod 2^n, where base is a multiple of 2^n
  const uint8x16_t rest = vandq_u8(low_bytes(v, w), vqtbl2q_u8(t.mask, entries));
  return vorrq_u8(vqtbl2q_u8(t.base, entries), rest);
}

BF16CODECS_INLINE void decode_step(const DecodingRows& t, NeonGroup& group, const uint8_t*& words,
                                   uint8_t* symbols) {
  uint8x16x2_t halves;  // the even ones and the odd ones
  halves.val[0] = decode_16(t, group.x), halves.val[1] = decode_16(t, group.x + 2);
  vst2q_u8(symbols, halves);
  group.renormalize(words);
}

// --- encoding ------------------------------------------------------------------------------------

struct EncodingRows {
  const TileCodeTable* table;
  uint8x16x4_t entry_of[4];
  WordRow coder, first;
  Row reciprocal[4];  // by byte

  explicit EncodingRows(const TileCodeTable& t) : table(&t) {
    for (unsigned i = 0; i < 16; ++i) entry_of[i / 4].val[i % 4] = vld1q_u8(t.entry_of + 16 * i);
    coder = make_word_row(t.coder);
    first = make_word_row(t.first);
    const uint8_t* const floats = reinterpret_cast<const uint8_t*>(t.reciprocal);
    const uint8x16x4_t low = vld4q_u8(floats), high = vld4q_u8(floats + 64);
    for (unsigned i = 0; i < 4; ++i) {
      reciprocal[i].val[0] = low.val[i], reciprocal[i].val[1] = high.val[i];
    }
  }

  // inverse[l] = reciprocal[entry of lane l], in 4096ths
  BF16CODECS_INLINE void invert(uint8x16_t entries, float32x4_t inverse[4]) const {
    zip_floats(vqtbl2q_u8(reciprocal[0], entries), vqtbl2q_u8(reciprocal[1], entries),
               vqtbl2q_u8(reciprocal[2], entries), vqtbl2q_u8(reciprocal[3], entries), inverse);
  }
};

// The entries of 16 symbols: four look-ups in 64 bytes each. Where the index is not below 64,
// vqtbx4q leaves the entry as it is.
BF16CODECS_INLINE uint8x16_t find_entries(const EncodingRows& t, uint8x16_t symbols) {
  uint8x16_t entries = vqtbl4q_u8(t.entry_of[0], symbols);
  entries = vqtbx4q_u8(entries, t.entry_of[1], vsubq_u8(symbols, vdupq_n_u8(64)));
  entries = vqtbx4q_u8(entries, t.entry_of[2], vsubq_u8(symbols, vdupq_n_u8(128)));
  return vqtbx4q_u8(entries, t.entry_of[3], vsubq_u8(symbols, vdupq_n_u8(192)));
}

// x div 2^(20 - n) >= f
BF16CODECS_INLINE uint32x4_t is_full(uint32x4_t x, uint16x4_t f, int16x4_t n) {
  const int32x4_t shift = vsubq_s32(vmovl_s16(n), vdupq_n_s32(20));
  return vcgeq_u32(vshlq_u32(x, shift), vmovl_u16(f));
}

BF16CODECS_INLINE uint16x8_t full_lanes(const Octet& x, const Coder& coder) {
  return lower_halves(is_full(first_four(x), vget_low_u16(coder.f), vget_low_s16(coder.n)),
                      is_full(last_four(x), vget_high_u16(coder.f), vget_high_s16(coder.n)));
}

struct Divided {
  uint32x4_t q, r;
};

// q = x div f,  r = x mod f,  for x = 2^n x + rest
BF16CODECS_INLINE Divided divide(uint32x4_t x, uint16x4_t rest, uint16x4_t f, int16x4_t n,
                                 float32x4_t inverse) {
  x = vaddw_u16(vshlq_u32(x, vmovl_s16(n)), rest);
  // The product is the quotient or one less, times 4096: a bias of 2^-21 outweighs four roundings
  // of 2^-24 (the division, the bias, x, the product), and together they stay below 2^-20, so that
  // a quotient below 2^20 lacks less than 1.
  uint32x4_t q = vshrq_n_u32(vcvtq_u32_f32(vmulq_f32(vcvtq_f32_u32(x), inverse)), 12);
  const uint32x4_t divisor = vmovl_u16(f);
  uint32x4_t r = vmlsq_u32(x, q, divisor);
  const uint32x4_t short_by_1 = vcgeq_u32(r, divisor);
  q = vsubq_u32(q, short_by_1);
  r = vsubq_u32(r, vandq_u32(short_by_1, divisor));
  return {q, r};
}

// Words of a table at eight indices: loads of one lane each, as NEON has no gather.
BF16CODECS_INLINE uint16x8_t gather(const uint16_t table[], uint16x8_t indices) {
  uint16_t i[8];
  vst1q_u16(i, indices);
  uint16x8_t v = vld1q_dup_u16(table + i[0]);
  v = vld1q_lane_u16(table + i[1], v, 1);
  v = vld1q_lane_u16(table + i[2], v, 2);
  v = vld1q_lane_u16(table + i[3], v, 3);
  v = vld1q_lane_u16(table + i[4], v, 4);
  v = vld1q_lane_u16(table + i[5], v, 5);
  v = vld1q_lane_u16(table + i[6], v, 6);
  return vld1q_lane_u16(table + i[7], v, 7);
}

// Puts symbols on eight states that have room for them.
BF16CODECS_INLINE void encode_octet(const uint16_t slots[], Octet& x, const Coder& coder,
                                    uint16x8_t rest, uint16x8_t first,
                                    const float32x4_t inverse[2]) {
  const Divided v = divide(first_four(x), vget_low_u16(rest), vget_low_u16(coder.f),
                           vget_low_s16(coder.n), inverse[0]);
  const Divided w = divide(last_four(x), vget_high_u16(rest), vget_high_u16(coder.f),
                           vget_high_s16(coder.n), inverse[1]);
  // x = 4096 q + slot[first + r]
  const uint16x8_t slot = gather(slots, vaddq_u16(first, lower_halves(v.r, w.r)));
  x = make_octet(vaddw_u16(vshlq_n_u32(v.q, 12), vget_low_u16(slot)),
                 vaddw_u16(vshlq_n_u32(w.q, 12), vget_high_u16(slot)));
}

// Encodes a step: first words for all lanes that need room, and then 16 symbols at a time, the even
// places and the odd ones.
BF16CODECS_INLINE void encode_step(const EncodingRows& t, Octet x[4], uint8_t*& words,
                                   const uint8_t* symbols) {
  const uint8x16x2_t halves = vld2q_u8(symbols);
  const uint8x16_t entries[2] = {find_entries(t, halves.val[0]), find_entries(t, halves.val[1])};
  const Words even = look_up(t.coder, entries[0]), odd = look_up(t.coder, entries[1]);
  const Coder coder[4] = {Coder(even.v[0]), Coder(even.v[1]), Coder(odd.v[0]), Coder(odd.v[1])};
  uint16x8_t full[4];
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 4; ++k) full[k] = full_lanes(x[k], coder[k]);
  emit(x, full, words);

  BF16CODECS_UNROLL
  for (unsigned h = 0; h < 2; ++h) {
    float32x4_t inverse[4];
    t.invert(entries[h], inverse);
    const Words first = look_up(t.first, entries[h]);
    const Words symbol = zip(halves.val[h], vdupq_n_u8(0));
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < 2; ++i) {
      // rest = symbol mod 2^n
      const Coder& c = coder[2 * h + i];
      const uint16x8_t rest = vbicq_u16(symbol.v[i], vshlq_u16(vdupq_n_u16(0xFFFF), c.n));
      encode_octet(t.table->slot, x[2 * h + i], c, rest, first.v[i], inverse + 2 * i);
    }
  }
}

}  // namespace

void neon_tiles_decode(TileDecoder& d, const TileTable tables[], const uint8_t* classes,
                       size_t steps, uint8_t* symbols) {
  decode_tiles<DecodingRows, NeonGroup>(d, tables, classes, steps, symbols);
}

void neon_tiles_encode(TileEncoder& e, const TileCodeTable tables[], const uint8_t* classes,
                       size_t steps, const uint8_t* symbols) {
  if (steps == 0) return;
  EncodingRows rows(tables[classes[steps - 1]]);
  States<NeonGroup> states(e);
  uint8_t* words = e.words;
  while (steps-- != 0) {
    const TileCodeTable& table = tables[classes[steps]];
    if (rows.table != &table) [[unlikely]]
      rows = EncodingRows(table);
    encode_step(rows, states.of(steps)->x, words, symbols + kStepItems * steps);
  }
  states.store(e);
  e.words = words;
}

}  // namespace bf16codecs
