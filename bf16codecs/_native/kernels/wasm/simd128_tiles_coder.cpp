// The tiles mode's rANS decoder for WebAssembly's vectors (docs/format_tiles.md, "Table classes"
// and "Tiles"). The states are those of simd128_lanes.h; 16 lanes are decoded at a time, x[0] and
// x[1] with the even symbols, x[2] and x[3] with the odd ones. A row of 32 bytes is two vectors,
// and a look-up two swizzles. With the kernels of simd128_tiles.cpp, decoding runs at 0.66 GB/s in
// Node 20, where the scalar kernels reach 0.16 (docs/experiments.md, "Tiles"). Each group of vector
// instructions is preceded by the scalar formula that it computes.

#include "kernels/tiles_decode.h"
#include "kernels/wasm/simd128_lanes.h"

namespace bf16codecs {
namespace {

// A byte for each of 32 entries: the first 16 and the others.
struct Row {
  v128_t low, high;
};

// A word for each of 32 entries, its bytes apart.
struct WordRow {
  Row low, high;

  explicit WordRow(const uint16_t words[kTileEntries]) {
    v128_t v[4];
    for (unsigned i = 0; i < 4; ++i) v[i] = wasm_v128_load(words + 8 * i);
    low = {even8(v[0], v[1]), even8(v[2], v[3])};
    high = {odd8(v[0], v[1]), odd8(v[2], v[3])};
  }
};

// Indices 0 ... 31 for look-ups in the two vectors of a row. A swizzle gives 0 for an index above
// 15, so that the look-up is the or of two swizzles.
struct Index {
  v128_t low, high;

  BF16CODECS_INLINE explicit Index(v128_t entries)
      : low(entries), high(wasm_i8x16_sub(entries, wasm_u8x16_splat(16))) {}
};

BF16CODECS_INLINE v128_t look_up(const Row& row, const Index& index) {
  return wasm_v128_or(wasm_i8x16_swizzle(row.low, index.low),
                      wasm_i8x16_swizzle(row.high, index.high));
}

struct DecodingRows {
  Row threshold, alias, base, mask;
  WordRow shift, coder;

  explicit DecodingRows(const TileTable& table) : shift(table.shift), coder(table.coder) {
    const WordRow buckets(table.alias), symbols(table.symbols);
    threshold = buckets.high, alias = buckets.low;
    mask = symbols.high, base = symbols.low;
  }
};

// The low bytes of words below 256.
BF16CODECS_INLINE v128_t narrow(v128_t v, v128_t w) {
  return wasm_u8x16_narrow_i16x8(v, w);
}

// The states of four lanes before and after their n bits are shifted out.
struct Quad {
  v128_t before, after;
};

// x = f (x div 4096) + r, below 2^32,  then x div 2^n, given f, r and 2^(5 - n) in dwords
BF16CODECS_INLINE Quad advance(v128_t x, v128_t f, v128_t r, v128_t scale) {
  const v128_t before = wasm_i32x4_add(wasm_i32x4_mul(wasm_u32x4_shr(x, 12), f), r);
  // x div 2^n = 2^(5 - n) (x div 32) + 2^(5 - n) (x mod 32) div 32, because WebAssembly shifts all
  // lanes by one number. The first product is below 2^32, the second at most 992, so that words
  // will do.
  const v128_t upper = wasm_i32x4_mul(wasm_u32x4_shr(before, 5), scale);
  const v128_t lower = wasm_i16x8_mul(wasm_v128_and(before, wasm_i32x4_splat(31)), scale);
  return {before, wasm_i32x4_add(upper, wasm_u32x4_shr(lower, 5))};
}

// Takes symbols off eight states; returns the states' low halves before the n bits were shifted
// out.
BF16CODECS_INLINE v128_t decode_octet(EightLanes& x, v128_t f, v128_t r, v128_t scale) {
  const v128_t first = wasm_i16x8_shuffle(x.low, x.high, 0, 8, 1, 9, 2, 10, 3, 11);
  const v128_t last = wasm_i16x8_shuffle(x.low, x.high, 4, 12, 5, 13, 6, 14, 7, 15);
  const Quad v = advance(first, wasm_u32x4_extend_low_u16x8(f), wasm_u32x4_extend_low_u16x8(r),
                         wasm_u32x4_extend_low_u16x8(scale));
  const Quad w = advance(last, wasm_u32x4_extend_high_u16x8(f), wasm_u32x4_extend_high_u16x8(r),
                         wasm_u32x4_extend_high_u16x8(scale));
  x = {lower_halves(v.after, w.after), upper_halves(v.after, w.after)};
  return lower_halves(v.before, w.before);
}

// Decodes 16 symbols.
BF16CODECS_INLINE v128_t decode_16(const DecodingRows& t, EightLanes x[2]) {
  const v128_t five = wasm_i16x8_splat(31), seven = wasm_i16x8_splat(127);
  // b = x mod 32,  p = x div 32 mod 128
  const v128_t b = narrow(wasm_v128_and(x[0].low, five), wasm_v128_and(x[1].low, five));
  const v128_t p0 = wasm_v128_and(wasm_u16x8_shr(x[0].low, 5), seven);
  const v128_t p1 = wasm_v128_and(wasm_u16x8_shr(x[1].low, 5), seven);
  // lent = p >= threshold[b],  entry = lent ? alias[b] : b,  rank = p + (lent ? shift[b] : 0)
  const Index bucket(b);
  const v128_t lent = wasm_u8x16_ge(narrow(p0, p1), look_up(t.threshold, bucket));
  const v128_t entries = wasm_v128_bitselect(look_up(t.alias, bucket), b, lent);
  const v128_t shift_low = wasm_v128_and(lent, look_up(t.shift.low, bucket));
  const v128_t shift_high = wasm_v128_and(lent, look_up(t.shift.high, bucket));
  const v128_t r0 = wasm_i16x8_add(zip_low8(shift_low, shift_high), p0);
  const v128_t r1 = wasm_i16x8_add(zip_high8(shift_low, shift_high), p1);

  // f, and 2^(5 - n)
  const Index entry(entries);
  const v128_t coder_low = look_up(t.coder.low, entry), coder_high = look_up(t.coder.high, entry);
  const v128_t f_high = wasm_v128_and(coder_high, wasm_u8x16_splat(31));
  const v128_t powers = wasm_u8x16_make(32, 16, 8, 4, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  const v128_t scale = wasm_i8x16_swizzle(powers, wasm_u8x16_shr(coder_high, 5));
  const v128_t v =
      decode_octet(x[0], zip_low8(coder_low, f_high), r0, wasm_u16x8_extend_low_u8x16(scale));
  const v128_t w =
      decode_octet(x[1], zip_high8(coder_low, f_high), r1, wasm_u16x8_extend_high_u8x16(scale));
  // symbol = base + x mod 2^n, where base is a multiple of 2^n
  const v128_t rest = wasm_v128_and(even8(v, w), look_up(t.mask, entry));
  return wasm_v128_or(look_up(t.base, entry), rest);
}

BF16CODECS_INLINE void decode_step(const DecodingRows& t, Simd128Group& group,
                                   const uint8_t*& words, uint8_t* symbols) {
  const v128_t even = decode_16(t, group.x), odd = decode_16(t, group.x + 2);
  wasm_v128_store(symbols, zip_low8(even, odd));
  wasm_v128_store(symbols + 16, zip_high8(even, odd));
  group.renormalize(words);
}

}  // namespace

static_assert(kMaxIntervalLog2 == 5);

void simd128_tiles_decode(TileDecoder& d, const TileTable tables[], const uint8_t* classes,
                          size_t steps, uint8_t* symbols) {
  decode_tiles<DecodingRows, Simd128Group>(d, tables, classes, steps, symbols);
}

}  // namespace bf16codecs
