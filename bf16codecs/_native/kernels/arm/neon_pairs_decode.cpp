// The pairs mode's decoders for NEON (docs/format.md, "rANS plane, pairs"). The states are those of
// neon_lanes.h; 16 lanes, two octets, are decoded at a time. Their low words are parted to a
// register of slots a and one of slots b, so that everything that is looked up is bytes in the
// order of the lanes: octets 0 and 1 give the even symbols, octets 2 and 3 the odd ones, slots a
// symbols 0-31 and slots b symbols 32-63. Each group of vector instructions is preceded by the
// scalar formula that it computes.

#include <algorithm>

#include "kernels/arm/neon_pairs.h"
#include "kernels/pairs_decode.h"

namespace bf16codecs {
namespace {

// The table's rows, in registers while a plane is decoded. `shift` is what puts a slot to an
// entry's place in 16 x 16: with base and threshold, 16 base + 16 more if the slot is not below the
// threshold, and something below 16.
struct DecoderRows {
  uint8x16_t shift, last, frequency, start, symbol, escape;

  explicit DecoderRows(const PairsTable& t)
      : last(vld1q_u8(t.last)),
        frequency(vld1q_u8(t.frequency)),
        start(vld1q_u8(t.start)),
        symbol(vld1q_u8(t.symbol)),
        escape(vdupq_n_u8(t.escape)) {
    uint8_t shifts[16];
    for (unsigned bucket = 0; bucket < 16; ++bucket) {
      const unsigned end = 16 * bucket + 16, next = std::min<unsigned>(t.threshold[bucket], end);
      shifts[bucket] = static_cast<uint8_t>(16 * t.base[bucket] + 16 - next);
    }
    shift = vld1q_u8(shifts);
  }
};

// entry = base[bucket] + (slot >= threshold[bucket]), in the last bucket last[slot % 16]. The slots
// of the last bucket, less 240 modulo 256, are the only ones below 16: vqtbx1q keeps the entry of
// all others.
BF16CODECS_INLINE uint8x16_t entries_of_slots(const DecoderRows& t, uint8x16_t slots) {
  const uint8x16_t bucket = vshrq_n_u8(slots, 4);
  const uint8x16_t entries = vshrq_n_u8(vaddq_u8(slots, vqtbl1q_u8(t.shift, bucket)), 4);
  return vqtbx1q_u8(entries, t.last, vsubq_u8(slots, vdupq_n_u8(240)));
}

// x = f (x >> 16) + r, where f is at most 65025 and r below f: x.high is x >> 16
BF16CODECS_INLINE void advance(Octet& x, uint16x8_t f, uint16x8_t r) {
  const uint32x4_t v = vmlal_u16(vmovl_u16(vget_low_u16(r)), vget_low_u16(x.high), vget_low_u16(f));
  const uint32x4_t w = vmlal_high_u16(vmovl_high_u16(r), x.high, f);
  x.low = lower_halves(v, w), x.high = upper_halves(v, w);
}

// Decodes two symbols from each of 16 lanes and gives their entries i and j.
BF16CODECS_INLINE void decode_16(const DecoderRows& t, Octet x[2], uint8x16_t& i, uint8x16_t& j) {
  // a = x % 256,  b = x / 256 % 256
  const uint8x16_t v = vreinterpretq_u8_u16(x[0].low), w = vreinterpretq_u8_u16(x[1].low);
  const uint8x16_t a = vuzp1q_u8(v, w), b = vuzp2q_u8(v, w);
  i = entries_of_slots(t, a), j = entries_of_slots(t, b);

  // f = f[i] f[j],  r = f[i] (b - c[j]) + (a - c[i]), in words by widening products of bytes
  const uint8x16_t fi = vqtbl1q_u8(t.frequency, i), fj = vqtbl1q_u8(t.frequency, j);
  const uint8x16_t ra = vsubq_u8(a, vqtbl1q_u8(t.start, i));
  const uint8x16_t rb = vsubq_u8(b, vqtbl1q_u8(t.start, j));
  advance(x[0], vmull_u8(vget_low_u8(fi), vget_low_u8(fj)),
          vaddw_u8(vmull_u8(vget_low_u8(fi), vget_low_u8(rb)), vget_low_u8(ra)));
  advance(x[1], vmull_high_u8(fi, fj), vaddw_high_u8(vmull_high_u8(fi, rb), ra));
}

// Puts 32 symbols into a plane, interleaved by the store.
struct ToPlane : PlaneSink {
  BF16CODECS_INLINE void put(uint8x16_t even, uint8x16_t odd, size_t at) {
    uint8x16x2_t symbols;
    symbols.val[0] = even, symbols.val[1] = odd;
    vst2q_u8(plane + at, symbols);
  }
};

// Puts 32 symbols into items as their high bytes.
struct ToItems : ItemSink {
  BF16CODECS_INLINE void put(uint8x16_t even, uint8x16_t odd, size_t at) {
    uint8_t* out = items + 2 * at;
    vst2q_u8(out, merge(vzip1q_u8(even, odd), vld1q_u8(low + at)));
    vst2q_u8(out + 32, merge(vzip2q_u8(even, odd), vld1q_u8(low + at + 16)));
  }
};

struct EscapeMask {
  uint64_t bits;
  uint64_t mask() const { return bits; }
};

// The entries of a group: of the even and the odd symbols of the first half, then of the second.
struct Entries {
  uint8x16_t entries[4], escape;

  BF16CODECS_INLINE bool any() const {
    const uint8x16_t highest =
        vmaxq_u8(vmaxq_u8(entries[0], entries[1]), vmaxq_u8(entries[2], entries[3]));
    return any_escaped(highest, escape);
  }
  BF16CODECS_INLINE EscapeMask packed() const { return {escape_mask(entries, escape)}; }
};

struct PairsGroup : NeonGroup {
  using Rows = DecoderRows;

  template <typename Sink>
  BF16CODECS_INLINE Entries decode(const Rows& t, Sink& sink, size_t at) {
    Entries e;
    e.escape = t.escape;
    decode_16(t, x, e.entries[0], e.entries[2]);
    decode_16(t, x + 2, e.entries[1], e.entries[3]);
    BF16CODECS_UNROLL
    for (unsigned h = 0; h < 2; ++h) {
      sink.put(vqtbl1q_u8(t.symbol, e.entries[2 * h]), vqtbl1q_u8(t.symbol, e.entries[2 * h + 1]),
               at + 32 * h);
    }
    return e;
  }
};

}  // namespace

size_t neon_pairs_decode(PairsDecoder& d, const uint8_t* limit, uint8_t* plane, size_t steps) {
  return decode_pairs<PairsGroup>(d, limit, ToPlane{{plane}}, steps);
}

size_t neon_pairs_decode16(PairsDecoder& d, const uint8_t* limit, const uint8_t* low,
                           uint8_t* items, size_t steps) {
  return decode_pairs<PairsGroup>(d, limit, ToItems{{low, items}}, steps);
}

}  // namespace bf16codecs
