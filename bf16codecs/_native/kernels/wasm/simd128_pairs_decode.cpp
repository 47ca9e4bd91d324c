// The pairs mode's decoders for WebAssembly's vectors (docs/format.md, "rANS plane, pairs"). The
// states are those of simd128_lanes.h; 16 lanes are decoded at a time. Their low words are parted
// to a vector of slots a and one of slots b, so that everything that is looked up is bytes in the
// order of the lanes: x[0] and x[1] give the even symbols, x[2] and x[3] the odd ones, slots a
// symbols 0-31 and slots b symbols 32-63. Each group of vector instructions is preceded by the
// scalar formula that it computes.

#include "kernels/pairs_decode.h"
#include "kernels/wasm/simd128_lanes.h"

namespace bf16codecs {
namespace {

// The table's rows.
struct DecoderRows {
  v128_t base, threshold, last, frequency, start, symbol, escape;

  explicit DecoderRows(const PairsTable& t)
      : frequency(wasm_v128_load(t.frequency)),
        start(wasm_v128_load(t.start)),
        symbol(wasm_v128_load(t.symbol)),
        escape(wasm_u8x16_splat(t.escape)) {
    // The entries of the last bucket come from `last` alone: its base is 0. Its threshold is 255,
    // which its last slot reaches, so that 1 is subtracted from that slot's entry in advance.
    base = wasm_u8x16_replace_lane(wasm_v128_load(t.base), 15, 0);
    threshold = wasm_u8x16_replace_lane(wasm_v128_load(t.threshold), 15, 255);
    last = wasm_v128_load(t.last);
    last = wasm_u8x16_replace_lane(last, 15,
                                   static_cast<uint8_t>(wasm_u8x16_extract_lane(last, 15) - 1));
  }
};

// entry = base[bucket] + (slot >= threshold[bucket]), in the last bucket last[slot % 16]. The slots
// of the last bucket, less 240 modulo 256, are the only ones below 16; a swizzle gives 0 for all
// others, so that the two can be added.
BF16CODECS_INLINE v128_t entries_of_slots(const DecoderRows& t, v128_t slots) {
  const v128_t bucket = wasm_u8x16_shr(slots, 4);
  const v128_t reached = wasm_u8x16_ge(slots, wasm_i8x16_swizzle(t.threshold, bucket));
  const v128_t entries = wasm_i8x16_sub(wasm_i8x16_swizzle(t.base, bucket), reached);
  const v128_t in_last = wasm_i8x16_sub(slots, wasm_u8x16_splat(240));
  return wasm_i8x16_add(entries, wasm_i8x16_swizzle(t.last, in_last));
}

// x = f (x >> 16) + r, where f is at most 65025 and r below f: x.high is x >> 16
BF16CODECS_INLINE void advance(EightLanes& x, v128_t f, v128_t r) {
  const v128_t v =
      wasm_i32x4_add(wasm_u32x4_extmul_low_u16x8(x.high, f), wasm_u32x4_extend_low_u16x8(r));
  const v128_t w =
      wasm_i32x4_add(wasm_u32x4_extmul_high_u16x8(x.high, f), wasm_u32x4_extend_high_u16x8(r));
  x.low = lower_halves(v, w), x.high = upper_halves(v, w);
}

// Decodes two symbols from each of 16 lanes and gives their entries i and j.
BF16CODECS_INLINE void decode_16(const DecoderRows& t, EightLanes x[2], v128_t& i, v128_t& j) {
  // a = x % 256,  b = x / 256 % 256
  const v128_t a = even8(x[0].low, x[1].low), b = odd8(x[0].low, x[1].low);
  i = entries_of_slots(t, a), j = entries_of_slots(t, b);

  // f = f[i] f[j],  r = f[i] (b - c[j]) + (a - c[i])
  const v128_t fi = wasm_i8x16_swizzle(t.frequency, i), fj = wasm_i8x16_swizzle(t.frequency, j);
  const v128_t ra = wasm_i8x16_sub(a, wasm_i8x16_swizzle(t.start, i));
  const v128_t rb = wasm_i8x16_sub(b, wasm_i8x16_swizzle(t.start, j));
  advance(x[0], wasm_u16x8_extmul_low_u8x16(fi, fj),
          wasm_i16x8_add(wasm_u16x8_extmul_low_u8x16(fi, rb), wasm_u16x8_extend_low_u8x16(ra)));
  advance(x[1], wasm_u16x8_extmul_high_u8x16(fi, fj),
          wasm_i16x8_add(wasm_u16x8_extmul_high_u8x16(fi, rb), wasm_u16x8_extend_high_u8x16(ra)));
}

// Puts 32 symbols, the even and the odd ones, into a plane.
struct ToPlane : PlaneSink {
  BF16CODECS_INLINE void put(v128_t even, v128_t odd, size_t at) {
    wasm_v128_store(plane + at, zip_low8(even, odd));
    wasm_v128_store(plane + at + 16, zip_high8(even, odd));
  }
};

// Puts 32 symbols into items as their high bytes.
struct ToItems : ItemSink {
  BF16CODECS_INLINE void put(v128_t even, v128_t odd, size_t at) {
    store_merged(zip_low8(even, odd), wasm_v128_load(low + at), items + 2 * at);
    store_merged(zip_high8(even, odd), wasm_v128_load(low + at + 16), items + 2 * at + 32);
  }
};

// A bit for each of 32 symbols whose entry is the escape.
BF16CODECS_INLINE uint64_t escape_mask(v128_t even, v128_t odd, v128_t escape) {
  const v128_t is_even = wasm_i8x16_eq(even, escape), is_odd = wasm_i8x16_eq(odd, escape);
  return static_cast<uint32_t>(wasm_i8x16_bitmask(zip_low8(is_even, is_odd))) |
         static_cast<uint32_t>(wasm_i8x16_bitmask(zip_high8(is_even, is_odd))) << 16;
}

// The entries of a group: of the even and the odd symbols of the first half, then of the second.
struct Entries {
  v128_t entries[4], escape;

  BF16CODECS_INLINE bool any() const {
    v128_t escaped = wasm_i8x16_eq(entries[0], escape);
    BF16CODECS_UNROLL
    for (unsigned i = 1; i < 4; ++i) {
      escaped = wasm_v128_or(escaped, wasm_i8x16_eq(entries[i], escape));
    }
    return wasm_v128_any_true(escaped);
  }
  uint64_t mask() const {
    return escape_mask(entries[0], entries[1], escape) | escape_mask(entries[2], entries[3], escape)
                                                             << 32;
  }
};
struct PairsGroup : Simd128Group {
  using Rows = DecoderRows;

  template <typename Sink>
  BF16CODECS_INLINE Entries decode(const Rows& t, Sink& sink, size_t at) {
    Entries e;
    e.escape = t.escape;
    decode_16(t, x, e.entries[0], e.entries[2]);
    decode_16(t, x + 2, e.entries[1], e.entries[3]);
    BF16CODECS_UNROLL
    for (unsigned h = 0; h < 2; ++h) {
      sink.put(wasm_i8x16_swizzle(t.symbol, e.entries[2 * h]),
               wasm_i8x16_swizzle(t.symbol, e.entries[2 * h + 1]), at + 32 * h);
    }
    return e;
  }
};

}  // namespace

size_t simd128_pairs_decode(PairsDecoder& d, const uint8_t* limit, uint8_t* plane, size_t steps) {
  return decode_pairs<PairsGroup>(d, limit, ToPlane{{plane}}, steps);
}

size_t simd128_pairs_decode16(PairsDecoder& d, const uint8_t* limit, const uint8_t* low,
                              uint8_t* items, size_t steps) {
  return decode_pairs<PairsGroup>(d, limit, ToItems{{low, items}}, steps);
}

}  // namespace bf16codecs
