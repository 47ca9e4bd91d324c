// The difference mode's rANS coder for NEON (docs/format_differences.md, "Coding"). The states are
// those of neon_lanes.h: octets 0 and 1 have the even items of a step, octets 2 and 3 the odd ones.
// Classes and numbers are parted by the loads and interleaved by the stores; between them
// everything is words of eight lanes. Slots and entries are looked up in memory, lane by lane. Each
// group of vector instructions is preceded by the scalar formula that it computes.

#include "kernels/arm/neon_delta.h"
#include "kernels/arm/neon_lanes.h"
#include "kernels/groups.h"

namespace bf16codecs {
namespace {

// Extends bytes of 32 items, the even ones and the odd ones, to words of eight lanes.
struct LaneWords {
  uint16x8_t v[4];

  explicit BF16CODECS_INLINE LaneWords(uint8x16_t even, uint8x16_t odd)
      : v{vmovl_u8(vget_low_u8(even)), vmovl_high_u8(even), vmovl_u8(vget_low_u8(odd)),
          vmovl_high_u8(odd)} {}
};

// The classes of a step's items, and their r.
struct Classes {
  LaneWords c, raw;

  BF16CODECS_INLINE Classes(uint8x16x2_t classes, uint8x16_t raw_row)
      : c(classes.val[0], classes.val[1]),
        raw(vqtbl1q_u8(raw_row, classes.val[0]), vqtbl1q_u8(raw_row, classes.val[1])) {}
};

// Bit i for item i of a step, given words of the lanes that are all bits or none.
BF16CODECS_INLINE uint32_t item_mask(const uint16x8_t words[4]) {
  const uint8x16_t even = vuzp1q_u8(vreinterpretq_u8_u16(words[0]), vreinterpretq_u8_u16(words[1]));
  const uint8x16_t odd = vuzp1q_u8(vreinterpretq_u8_u16(words[2]), vreinterpretq_u8_u16(words[3]));
  return first_dword(bit_mask(vzip1q_u8(even, odd), vzip2q_u8(even, odd)));
}

// v mod 2^q
BF16CODECS_INLINE uint16x8_t low_bits(uint16x8_t v, int16x8_t q) {
  return vbicq_u16(v, vshlq_u16(vdupq_n_u16(0xFFFF), q));
}

// --- decoding ------------------------------------------------------------------------------------

BF16CODECS_INLINE uint32x4_t gather4(const uint32_t table[], const uint16_t indices[4]) {
  uint32x4_t v = vld1q_dup_u32(table + indices[0]);
  v = vld1q_lane_u32(table + indices[1], v, 1);
  v = vld1q_lane_u32(table + indices[2], v, 2);
  return vld1q_lane_u32(table + indices[3], v, 3);
}

// x = f (x div 4096) + rank, below 2^32; see the ranges in delta.cpp
BF16CODECS_INLINE uint32x4_t advance(uint32x4_t x, uint32x4_t slot) {
  const uint32x4_t low12 = vdupq_n_u32(4095);
  const uint32x4_t rank = vandq_u32(vshrq_n_u32(slot, 16), low12);
  return vmlaq_u32(rank, vshrq_n_u32(x, 12), vandq_u32(slot, low12));
}

// x = x div 2^q
BF16CODECS_INLINE uint32x4_t shift_out(uint32x4_t x, int16x4_t q) {
  return vshlq_u32(x, vnegq_s32(vmovl_s16(q)));
}

// Decodes an item in eight lanes; returns the coded numbers, and all bits of the escapes.
BF16CODECS_INLINE uint16x8_t decode_octet(const uint32_t slots[], uint16x8_t classes,
                                          uint16x8_t raw, Octet& x, uint16x8_t& escapes) {
  // slot = slots[4096 c + x mod 4096]: a class is below 16, so that the index fits in a word
  uint16_t indices[8];
  vst1q_u16(indices, vsliq_n_u16(x.low, classes, 12));
  const uint32x4_t slot[2] = {gather4(slots, indices), gather4(slots, indices + 4)};
  const uint32x4_t v = advance(first_four(x), slot[0]), w = advance(last_four(x), slot[1]);
  // number = (base << r) + x mod 2^q,  x = x div 2^q
  const int16x8_t q = vreinterpretq_s16_u16(vshrq_n_u16(lower_halves(slot[0], slot[1]), 12));
  const uint16x8_t entry = vshrq_n_u16(upper_halves(slot[0], slot[1]), 12);
  const uint16x8_t base =
      vreinterpretq_u16_u8(vqtbl1q_u8(vld1q_u8(kDeltaBase), vreinterpretq_u8_u16(entry)));
  x = make_octet(shift_out(v, vget_low_s16(q)), shift_out(w, vget_high_s16(q)));
  escapes = vceqq_u16(entry, vdupq_n_u16(kDeltaEscape));
  return vaddq_u16(vshlq_u16(base, vreinterpretq_s16_u16(raw)), low_bits(lower_halves(v, w), q));
}

// Decodes a step; returns the mask of its escapes. The stores of pairs interleave the even items,
// of octet i, with the odd ones, of octet 2 + i.
BF16CODECS_INLINE uint32_t decode_step(const DeltaTables& t, Octet x[4], const uint8_t*& words,
                                       const uint8_t* classes, uint16_t* numbers) {
  const Classes of(vld2q_u8(classes), vld1q_u8(t.raw));
  uint16x8_t number[4], escapes[4];
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 4; ++k) {
    number[k] = decode_octet(t.slots, of.c.v[k], of.raw.v[k], x[k], escapes[k]);
  }
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < 2; ++i) {
    uint16x8x2_t both;
    both.val[0] = number[i], both.val[1] = number[2 + i];
    vst2q_u16(numbers + 16 * i, both);
  }
  renormalize(x, words);
  return item_mask(escapes);
}

// --- encoding ------------------------------------------------------------------------------------

// By class and entry, q << 28 | start << 12 | f and (1 - kReciprocalBias) / f; where f = 0 those of
// the escape. Escapes have kEscapeFlag set as well, a bit that start, below 4096, leaves free.
struct EncodingTable {
  struct Entry {
    uint32_t bits;
    float reciprocal;
  } entries[kDeltaClasses * kDeltaEntries];
};

constexpr uint32_t kEscapeFlag = 1 << 27;

BF16CODECS_COLD void make_encoding_table(const DeltaTables& t, EncodingTable& table) {
  for (unsigned at = 0; at < kDeltaEntries * t.classes; ++at) {
    const unsigned escape = at | kDeltaEscape;
    const bool is_escape = at == escape || (t.coder[at] & 4095) == 0;
    const unsigned from = is_escape ? escape : at;
    const uint32_t f = t.coder[from] & 4095, q = t.coder[from] >> 12;
    table.entries[at].bits =
        q << 28 | (is_escape ? kEscapeFlag : 0) | static_cast<uint32_t>(t.start[from]) << 12 | f;
    table.entries[at].reciprocal = (1.0f - kReciprocalBias) / static_cast<float>(f);
  }
}

// The table's entries for four lanes, each loaded as 8 bytes.
struct Entries {
  uint32x4_t bits;
  float32x4_t reciprocal;

  BF16CODECS_INLINE Entries(const EncodingTable& table, const uint16_t indices[4]) {
    const EncodingTable::Entry* const e = table.entries;
    const uint32x4_t v = two(e + indices[0], e + indices[1]);
    const uint32x4_t w = two(e + indices[2], e + indices[3]);
    bits = vuzp1q_u32(v, w);
    reciprocal = vreinterpretq_f32_u32(vuzp2q_u32(v, w));
  }
  BF16CODECS_INLINE uint32x4_t f() const { return vandq_u32(bits, vdupq_n_u32(4095)); }
  BF16CODECS_INLINE uint32x4_t start() const {
    return vandq_u32(vshrq_n_u32(bits, 12), vdupq_n_u32(4095));
  }
  BF16CODECS_INLINE int32x4_t q() const { return vreinterpretq_s32_u32(vshrq_n_u32(bits, 28)); }

 private:
  static BF16CODECS_INLINE uint32x4_t two(const EncodingTable::Entry* a,
                                          const EncodingTable::Entry* b) {
    const uint8x8_t v = vld1_u8(reinterpret_cast<const uint8_t*>(a));
    const uint8x8_t w = vld1_u8(reinterpret_cast<const uint8_t*>(b));
    return vreinterpretq_u32_u8(vcombine_u8(v, w));
  }
};

// The entries j of numbers.
BF16CODECS_INLINE uint16x8_t find_entries(uint16x8_t numbers, uint16x8_t raw) {
  static constexpr uint8_t kBelow16[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 9, 10, 10, 11, 11};
  static constexpr uint8_t kFrom16[16] = {0, 12, 13, 13, 14, 14, 14, 14, kDeltaEscape};
  // v = min(number >> r, 128)
  const uint16x8_t shifted = vshlq_u16(numbers, vnegq_s16(vreinterpretq_s16_u16(raw)));
  const uint16x8_t v = vminq_u16(shifted, vdupq_n_u16(kMaxDeltaValue + 1));
  // An index above 15 gives 0: below 16 the second row gives 0, from 16 on the first one.
  const uint8x16_t low = vqtbl1q_u8(vld1q_u8(kBelow16), vreinterpretq_u8_u16(v));
  const uint8x16_t high = vqtbl1q_u8(vld1q_u8(kFrom16), vreinterpretq_u8_u16(vshrq_n_u16(v, 4)));
  return vreinterpretq_u16_u8(vorrq_u8(low, high));
}

// The numbers of eight items, and their entries of the table.
struct Items {
  uint16x8_t numbers;
  Entries first, last;

  // entry = table[16 c + j]
  BF16CODECS_INLINE Items(const EncodingTable& table, uint16x8_t all, const uint16_t indices[8])
      : numbers(all), first(table, indices), last(table, indices + 4) {}

  // All bits of the escapes.
  BF16CODECS_INLINE uint16x8_t escapes() const {
    return vtstq_u16(upper_halves(first.bits, last.bits), vdupq_n_u16(kEscapeFlag >> 16));
  }
};

// x div 2^(20 - q) >= f
BF16CODECS_INLINE uint32x4_t is_full(uint32x4_t x, const Entries& e) {
  return vcgeq_u32(vshlq_u32(x, vsubq_s32(e.q(), vdupq_n_s32(20))), e.f());
}

// x = x << q | number mod 2^q,  x = 4096 (x div f) + start + x mod f
BF16CODECS_INLINE uint32x4_t encode_four(uint32x4_t x, uint16x4_t numbers, const Entries& e) {
  const uint32x4_t above = vshlq_u32(vdupq_n_u32(0xFFFFFFFF), e.q()), f = e.f();
  x = vorrq_u32(vshlq_u32(x, e.q()), vbicq_u32(vmovl_u16(numbers), above));
  // The product is the quotient or one less: a bias of 2^-21 outweighs three roundings of 2^-24
  // (the division, x, the product), and together they stay below 2^-20. The quotient is below 2^20:
  // x >> (20 - q) was below f, or a word was put out, and it is below 2^(q - 4) now, which is at
  // most f.
  uint32x4_t quotient = vcvtq_u32_f32(vmulq_f32(vcvtq_f32_u32(x), e.reciprocal));
  uint32x4_t r = vmlsq_u32(x, quotient, f);
  const uint32x4_t short_by_1 = vcgeq_u32(r, f);
  quotient = vsubq_u32(quotient, short_by_1);
  r = vsubq_u32(r, vandq_u32(short_by_1, f));
  return vaddq_u32(vshlq_n_u32(quotient, 12), vaddq_u32(e.start(), r));
}

BF16CODECS_INLINE Items find_items(const EncodingTable& table, uint16x8_t numbers,
                                   uint16x8_t classes, uint16x8_t raw) {
  uint16_t indices[8];
  vst1q_u16(indices, vsliq_n_u16(find_entries(numbers, raw), classes, 4));
  return Items(table, numbers, indices);
}

// Encodes a step: first words for all lanes that need room, and then the numbers; returns the mask
// of its escapes.
BF16CODECS_INLINE uint32_t encode_step(const DeltaTables& t, const EncodingTable& table, Octet x[4],
                                       uint8_t*& words, const uint8_t* classes,
                                       const uint16_t* numbers) {
  const Classes of(vld2q_u8(classes), vld1q_u8(t.raw));
  const uint16x8x2_t first = vld2q_u16(numbers), last = vld2q_u16(numbers + 16);
  const Items items[4] = {find_items(table, first.val[0], of.c.v[0], of.raw.v[0]),
                          find_items(table, last.val[0], of.c.v[1], of.raw.v[1]),
                          find_items(table, first.val[1], of.c.v[2], of.raw.v[2]),
                          find_items(table, last.val[1], of.c.v[3], of.raw.v[3])};
  uint16x8_t full[4], escapes[4];
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 4; ++k) {
    full[k] = lower_halves(is_full(first_four(x[k]), items[k].first),
                           is_full(last_four(x[k]), items[k].last));
    escapes[k] = items[k].escapes();
  }
  emit(x, full, words);
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 4; ++k) {
    const uint16x8_t n = items[k].numbers;
    x[k] = make_octet(encode_four(first_four(x[k]), vget_low_u16(n), items[k].first),
                      encode_four(last_four(x[k]), vget_high_u16(n), items[k].last));
  }
  return item_mask(escapes);
}

}  // namespace

void neon_delta_decode(DeltaDecoder& d, const DeltaTables& tables, const uint8_t* classes,
                       size_t steps, uint16_t* numbers, uint32_t* escapes) {
  States<NeonGroup> states(d);
  const uint8_t* words = d.words;
  for (size_t step = 0; step < steps; ++step) {
    escapes[step] = decode_step(tables, states.of(step)->x, words, classes + kDeltaStep * step,
                                numbers + kDeltaStep * step);
  }
  states.store(d);
  d.words = words;
}

void neon_delta_encode(DeltaEncoder& e, const DeltaTables& tables, const uint8_t* classes,
                       const uint16_t* numbers, size_t steps, uint32_t* escapes) {
  EncodingTable table;
  make_encoding_table(tables, table);
  States<NeonGroup> states(e);
  uint8_t* words = e.words;
  while (steps-- != 0) {
    escapes[steps] = encode_step(tables, table, states.of(steps)->x, words,
                                 classes + kDeltaStep * steps, numbers + kDeltaStep * steps);
  }
  states.store(e);
  e.words = words;
}

}  // namespace bf16codecs
