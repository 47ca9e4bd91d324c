// The pairs mode's encoder for NEON (docs/format.md, "rANS plane, pairs"). The states are those of
// neon_lanes.h, and symbols are loaded as in the decoder: bytes of 16 lanes, the even ones of 32
// and the odd ones. All lanes of a group emit their words first, and are divided then. Each group
// of vector instructions is preceded by the scalar formula that it computes.

#include "kernels/arm/neon_pairs.h"
#include "kernels/groups.h"
#include "kernels/pairs_escapes.h"

namespace bf16codecs {
namespace {

// The entries, parted into rows of bytes, so that byte look-ups find them: each of the four bytes
// of a reciprocal has a row.
struct EncoderRows {
  uint8x16_t frequency, start;
  uint8x16x4_t reciprocal;

  explicit EncoderRows(const PairsEncoder& e) {
    uint8_t bytes[64];
    for (unsigned i = 0; i < 4; ++i) {
      vst1q_u8(bytes + 16 * i, vreinterpretq_u8_u32(vld1q_u32(e.entry + 4 * i)));
    }
    const uint8x16x4_t entry = vld4q_u8(bytes);
    // Of entry = frequency | start << 16 the lower bytes: both are below 256 where entries are in
    // use.
    frequency = entry.val[0], start = entry.val[2];
    for (unsigned i = 0; i < 4; ++i) {
      vst1q_u8(bytes + 16 * i, vreinterpretq_u8_f32(vld1q_f32(e.reciprocal + 4 * i)));
    }
    reciprocal = vld4q_u8(bytes);
  }

  // inverse[l] = reciprocal[index of lane l]
  BF16CODECS_INLINE void invert(uint8x16_t index, float32x4_t inverse[4]) const {
    const uint8x16_t b0 = vqtbl1q_u8(reciprocal.val[0], index);
    const uint8x16_t b1 = vqtbl1q_u8(reciprocal.val[1], index);
    const uint8x16_t b2 = vqtbl1q_u8(reciprocal.val[2], index);
    const uint8x16_t b3 = vqtbl1q_u8(reciprocal.val[3], index);
    zip_floats(b0, b1, b2, b3, inverse);
  }
};

// Quotients and remainders of four lanes.
struct Divided {
  uint32x4_t q, r2, r;  // x / f, x % f / f[i], x % f
};

BF16CODECS_INLINE Divided divide(uint32x4_t x, uint32x4_t f, float32x4_t inverse_i,
                                 float32x4_t inverse_j) {
  // q = x / f, r = x % f. The product is the quotient or one less, by the seven roundings of
  // kReciprocalBias: x is rounded once, and there is no product with a sum that might be fused.
  const float32x4_t inverse = vmulq_f32(inverse_i, inverse_j);
  uint32x4_t q = vcvtq_u32_f32(vmulq_f32(vcvtq_f32_u32(x), inverse));
  uint32x4_t r = vmlsq_u32(x, q, f);
  const uint32x4_t short_by_1 = vcgeq_u32(r, f);
  q = vsubq_u32(q, short_by_1);
  r = vsubq_u32(r, vandq_u32(short_by_1, f));
  // r / f[i] < 256. (r + 0.5) / f[i] is at least 0.5 / f[i] > 2^-9 away from every integer, and the
  // bias and the roundings change it by less.
  const float32x4_t half = vaddq_f32(vcvtq_f32_u32(r), vdupq_n_f32(0.5f));
  return {q, vcvtq_u32_f32(vmulq_f32(half, inverse_i)), r};
}

// Puts a pair of symbols, with frequencies fi and fj and starts ci and cj, on each of eight states
// that have room for it; f = fi fj. Quotients are below 2^16, remainders below f: all of it is
// words again.
BF16CODECS_INLINE void encode_octet(Octet& x, uint16x8_t f, uint8x8_t fi, uint8x8_t ci,
                                    uint8x8_t cj, const float32x4_t inverse_i[2],
                                    const float32x4_t inverse_j[2]) {
  const Divided v = divide(vreinterpretq_u32_u16(vzip1q_u16(x.low, x.high)),
                           vmovl_u16(vget_low_u16(f)), inverse_i[0], inverse_j[0]);
  const Divided w = divide(vreinterpretq_u32_u16(vzip2q_u16(x.low, x.high)), vmovl_high_u16(f),
                           inverse_i[1], inverse_j[1]);
  // x = q << 16 | (c[j] + r / f[i]) << 8 | (c[i] + r % f[i])
  const uint16x8_t r2 = lower_halves(v.r2, w.r2);
  const uint16x8_t r1 = vmlsq_u16(lower_halves(v.r, w.r), r2, vmovl_u8(fi));
  x.low = vsliq_n_u16(vaddw_u8(r1, ci), vaddw_u8(r2, cj), 8);
  x.high = lower_halves(v.q, w.q);
}

// The entries of a group's symbols: of the even and the odd ones of the first half, then of the
// second. One look-up for each row of 16 symbols in which some have an entry; an index above 15
// leaves an entry as it is, so that all other symbols are escapes.
BF16CODECS_INLINE void entries_of_symbols(const PairsEncoder& e, const uint8_t* symbols,
                                          uint8x16_t entries[4]) {
  const uint8x16x2_t first = vld2q_u8(symbols), second = vld2q_u8(symbols + 32);
  const uint8x16_t quarters[4] = {first.val[0], first.val[1], second.val[0], second.val[1]};
  for (unsigned k = 0; k < 4; ++k) entries[k] = vdupq_n_u8(e.escape);
  for (unsigned rows = e.rows; rows != 0; rows &= rows - 1) {
    const unsigned from = 16 * first_bit(rows);
    const uint8x16_t table = vld1q_u8(e.entry_of + from);
    // if (symbol / 16 == row) entry = table[symbol % 16]
    for (unsigned k = 0; k < 4; ++k) {
      const uint8x16_t index = vsubq_u8(quarters[k], vdupq_n_u8(static_cast<uint8_t>(from)));
      entries[k] = vqtbx1q_u8(entries[k], table, index);
    }
  }
}

// Encodes a group's 64 symbols. h counts halves of 16 lanes: the even ones, then the odd ones.
BF16CODECS_INLINE void encode_group(PairsEncoder& e, const EncoderRows& t, const uint8_t* symbols,
                                    Octet x[4], uint8_t*& words) {
  uint8x16_t entries[4], fi[2];
  entries_of_symbols(e, symbols, entries);
  uint16x8_t f[4];
  for (unsigned h = 0; h < 2; ++h) {
    fi[h] = vqtbl1q_u8(t.frequency, entries[h]);
    const uint8x16_t fj = vqtbl1q_u8(t.frequency, entries[2 + h]);
    f[2 * h] = vmull_u8(vget_low_u8(fi[h]), vget_low_u8(fj));
    f[2 * h + 1] = vmull_high_u8(fi[h], fj);
  }
  uint16x8_t full[4];
  for (unsigned k = 0; k < 4; ++k) full[k] = vcgeq_u16(x[k].high, f[k]);  // x >> 16 >= f
  emit(x, full, words);
  for (unsigned h = 0; h < 2; ++h) {
    float32x4_t inverse_i[4], inverse_j[4];
    t.invert(entries[h], inverse_i), t.invert(entries[2 + h], inverse_j);
    const uint8x16_t ci = vqtbl1q_u8(t.start, entries[h]);
    const uint8x16_t cj = vqtbl1q_u8(t.start, entries[2 + h]);
    encode_octet(x[2 * h], f[2 * h], vget_low_u8(fi[h]), vget_low_u8(ci), vget_low_u8(cj),
                 inverse_i, inverse_j);
    encode_octet(x[2 * h + 1], f[2 * h + 1], vget_high_u8(fi[h]), vget_high_u8(ci),
                 vget_high_u8(cj), inverse_i + 2, inverse_j + 2);
  }
  const uint8x16_t escape = vdupq_n_u8(e.escape);
  if (any_escaped(entries, escape)) [[unlikely]] {
    save_escapes(e, escape_mask(entries, escape), symbols);
  }
}

}  // namespace

void neon_pairs_encode(PairsEncoder& e, const uint8_t* plane, size_t steps) {
  const EncoderRows rows(e);
  States<NeonGroup> states(e);
  uint8_t* words = e.words;
  for (size_t group = steps * e.groups; group-- != 0;) {
    encode_group(e, rows, plane + kPairSymbols * group, states.of(group)->x, words);
  }
  states.store(e);
  e.words = words;
}

}  // namespace bf16codecs
