// The pairs mode's encoder for NEON (docs/format.md, "rANS plane, pairs"). The states are those of
// neon_lanes.h, and symbols are loaded as in the decoder: bytes of 16 lanes, the even ones of 32
// and the odd ones. All lanes of a group emit their words first, and are divided then.
//
// Only the quotient x / f takes numbers of 32 bits, as binary32. Rounded to the nearest integer, it
// leaves a remainder that fits in a signed word; all else is words, and then bytes. Each group of
// vector instructions is preceded by the scalar formula that it computes.

#include <algorithm>

#include "kernels/arm/neon_pairs.h"
#include "kernels/groups.h"
#include "kernels/pairs_escapes.h"

namespace bf16codecs {
namespace {

// An entry's rank is its number xored with the escape's, which is thereby 0: what a look-up gives
// for a symbol outside of the window. Without an escape, all symbols have entries.
BF16CODECS_INLINE unsigned entry_of_rank_0(const PairsEncoder& e) {
  return e.escape & 15u;
}

// The ranks of 32 symbols, from `first` on.
struct SymbolWindow {
  uint8x16_t first;
  uint8x16x2_t ranks;

  // Begins with a row of 16 symbols, below the last one.
  void set(const PairsEncoder& e, unsigned row) {
    first = vdupq_n_u8(static_cast<uint8_t>(16 * row));
    const uint8x16_t to_rank = vdupq_n_u8(static_cast<uint8_t>(entry_of_rank_0(e)));
    const uint8x16_t most = vdupq_n_u8(15);
    ranks.val[0] = vandq_u8(veorq_u8(vld1q_u8(e.entry_of + 16 * row), to_rank), most);
    ranks.val[1] = vandq_u8(veorq_u8(vld1q_u8(e.entry_of + 16 * row + 16), to_rank), most);
  }
};

// An encoder's table, by rank and by symbol.
struct EncoderRows {
  uint8x16_t frequency, start;
  uint8x16_t inverse_low, inverse_high;  // the bytes of 2^15 / frequency, rounded to the nearest
  uint8x16_t escape;                     // 0, or 255 where no entry is the escape
  SymbolWindow windows[8];
  const SymbolWindow* windows_end;

  explicit EncoderRows(const PairsEncoder& e)
      : escape(vdupq_n_u8(e.escape == 255 ? 255 : 0)), windows_end(windows) {
    uint8_t rows[4][16];
    for (unsigned rank = 0; rank < 16; ++rank) {
      const uint32_t entry = e.entry[rank ^ entry_of_rank_0(e)], f = entry & 0xFFFF;
      const uint32_t inverse = std::min((0x8000 + f / 2) / f, 0x7FFFu);
      rows[0][rank] = static_cast<uint8_t>(f);
      rows[1][rank] = static_cast<uint8_t>(entry >> 16);
      rows[2][rank] = static_cast<uint8_t>(inverse);
      rows[3][rank] = static_cast<uint8_t>(inverse >> 8);
    }
    frequency = vld1q_u8(rows[0]), start = vld1q_u8(rows[1]);
    inverse_low = vld1q_u8(rows[2]), inverse_high = vld1q_u8(rows[3]);

    SymbolWindow* window = windows;
    for (unsigned left = e.rows; left != 0; ++window) {
      const unsigned row = std::min(first_bit(left), 14u);
      window->set(e, row);
      left &= ~(3u << row);
    }
    windows_end = window;
  }
};

// Where a group's symbols are in a window: of the even and the odd ones of the first half, then of
// the second. Symbols outside of it get indices above 31.
struct Indices {
  uint8x16_t quarters[4];

  BF16CODECS_INLINE Indices(const SymbolWindow& window, const uint8_t* symbols) {
    const uint8x16x2_t first = vld2q_u8(symbols), second = vld2q_u8(symbols + 32);
    quarters[0] = vsubq_u8(first.val[0], window.first);
    quarters[1] = vsubq_u8(first.val[1], window.first);
    quarters[2] = vsubq_u8(second.val[0], window.first);
    quarters[3] = vsubq_u8(second.val[1], window.first);
  }
};

// The ranks of a group's symbols, in the order of Indices. There is at least one window, and
// exponents rarely have more.
BF16CODECS_INLINE void ranks_of_symbols(const EncoderRows& t, const uint8_t* symbols,
                                        uint8x16_t ranks[4]) {
  const SymbolWindow* w = t.windows;
  const Indices at(*w, symbols);
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 4; ++k) ranks[k] = vqtbl2q_u8(w->ranks, at.quarters[k]);
  while (++w != t.windows_end) [[unlikely]] {
    const Indices next(*w, symbols);
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 4; ++k) {
      ranks[k] = vqtbx2q_u8(ranks[k], w->ranks, next.quarters[k]);
    }
  }
}

// 2^23 + u as binary32, whose significand ends with the word u.
BF16CODECS_INLINE float32x4_t above_2_23(uint16x8_t zipped) {
  return vreinterpretq_f32_u16(zipped);
}

// x / f of eight lanes, where x < 2^16 f, rounded to the nearest integer, modulo 2^16 (lanes.h,
// "The nearest quotient"). Adding 2^23 rounds, and leaves the integer in the lower half.
BF16CODECS_INLINE uint16x8_t nearest_quotient(const Octet& x, uint16x8_t f) {
  const float32x4_t integers = vdupq_n_f32(0x1p23f);
  // By subtraction, which either of Neoverse N1's two pipelines can do, and a conversion only one:
  // by llvm-mca 138 cycles for a group instead of 149.
  const uint16x8_t high = vdupq_n_u16(0x4B00);
  const float32x4_t f_first = vsubq_f32(above_2_23(vzip1q_u16(f, high)), integers);
  const float32x4_t f_last = vsubq_f32(above_2_23(vzip2q_u16(f, high)), integers);
  const float32x4_t v = vdivq_f32(vcvtq_f32_u32(first_four(x)), f_first);
  const float32x4_t w = vdivq_f32(vcvtq_f32_u32(last_four(x)), f_last);
  return lower_halves(vreinterpretq_u32_f32(vaddq_f32(v, integers)),
                      vreinterpretq_u32_f32(vaddq_f32(w, integers)));
}

// The frequencies of 16 lanes' symbols i and j, and their products.
struct Frequencies {
  uint8x16_t i, j;
  uint16x8_t f[2];

  BF16CODECS_INLINE Frequencies(const EncoderRows& t, uint8x16_t rank_i, uint8x16_t rank_j)
      : i(vqtbl1q_u8(t.frequency, rank_i)), j(vqtbl1q_u8(t.frequency, rank_j)) {
    f[0] = vmull_u8(vget_low_u8(i), vget_low_u8(j)), f[1] = vmull_high_u8(i, j);
  }
};

// The remainder of eight lanes, parted by f[i]. Modulo 2^8, r / f[i] is quotient + (rest < 0), and
// r % f[i] is rest, plus f[i] if it is negative.
struct Remainder {
  uint8x16_t quotient, rest, borrowed;  // words, of which bytes are taken
};

// x.high = x / f, and what is left. If the nearest integer is too large by one, the remainder is
// negative: 2^16 is taken off the state, and f put on the remainder, f[j] times f[i].
BF16CODECS_INLINE Remainder divide(Octet& x, uint16x8_t f, uint16x8_t fi, uint8x16_t inverse) {
  const uint16x8_t q = nearest_quotient(x, f);
  const int16x8_t r = vreinterpretq_s16_u16(vmlsq_u16(x.low, q, f));
  const uint16x8_t borrowed = vcltzq_s16(r);
  x.high = vaddq_u16(q, borrowed);
  // r times the rounded inverse, in 2^-15, rounded: each changes the quotient by less than 1/2, or
  // for f[i] = 1, whose inverse is 2^-15 short, by 2^-8. So |rest| < f[i].
  const int16x8_t quotient = vqrdmulhq_s16(r, vreinterpretq_s16_u8(inverse));
  const int16x8_t rest = vmlsq_s16(r, quotient, vreinterpretq_s16_u16(fi));
  return {vreinterpretq_u8_s16(quotient), vreinterpretq_u8_s16(rest),
          vreinterpretq_u8_u16(borrowed)};
}

// Puts the symbols i and j on each of 16 states that have room for them.
BF16CODECS_INLINE void encode_16(const EncoderRows& t, Octet x[2], const Frequencies& f,
                                 uint8x16_t i, uint8x16_t j) {
  const uint8x16_t b0 = vqtbl1q_u8(t.inverse_low, i), b1 = vqtbl1q_u8(t.inverse_high, i);
  const Remainder v = divide(x[0], f.f[0], vmovl_u8(vget_low_u8(f.i)), vzip1q_u8(b0, b1));
  const Remainder w = divide(x[1], f.f[1], vmovl_high_u8(f.i), vzip2q_u8(b0, b1));
  // low = c[i] + r % f[i],  high = c[j] + r / f[i]
  const uint8x16_t negative = vuzp2q_u8(v.rest, w.rest);
  const uint8x16_t borrowed = vuzp1q_u8(v.borrowed, w.borrowed);
  const uint8x16_t r1 = vaddq_u8(vuzp1q_u8(v.rest, w.rest), vandq_u8(negative, f.i));
  const uint8x16_t r2 =
      vaddq_u8(vaddq_u8(vuzp1q_u8(v.quotient, w.quotient), negative), vandq_u8(borrowed, f.j));
  const uint8x16_t low = vaddq_u8(vqtbl1q_u8(t.start, i), r1);
  const uint8x16_t high = vaddq_u8(vqtbl1q_u8(t.start, j), r2);
  x[0].low = vreinterpretq_u16_u8(vzip1q_u8(low, high));
  x[1].low = vreinterpretq_u16_u8(vzip2q_u8(low, high));
}

// Encodes a group's 64 symbols.
BF16CODECS_INLINE void encode_group(PairsEncoder& e, const EncoderRows& t, const uint8_t* symbols,
                                    Octet x[4], uint8_t*& words) {
  uint8x16_t ranks[4];
  ranks_of_symbols(t, symbols, ranks);
  const Frequencies even(t, ranks[0], ranks[2]), odd(t, ranks[1], ranks[3]);
  // x >> 16 >= f
  const uint16x8_t full[4] = {vcgeq_u16(x[0].high, even.f[0]), vcgeq_u16(x[1].high, even.f[1]),
                              vcgeq_u16(x[2].high, odd.f[0]), vcgeq_u16(x[3].high, odd.f[1])};
  emit(x, full, words);
  encode_16(t, x, even, ranks[0], ranks[2]);
  encode_16(t, x + 2, odd, ranks[1], ranks[3]);
  const uint8x16_t lowest = vminq_u8(vminq_u8(ranks[0], ranks[1]), vminq_u8(ranks[2], ranks[3]));
  if (any_escaped(lowest, t.escape)) [[unlikely]]
    save_escapes(e, escape_mask(ranks, t.escape), symbols);
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
