// The difference mode's classes and numbers for NEON (docs/format_differences.md, "Numbers"): eight
// items of 16 bits in a register, modulo 2^16 as in the format; the scalar kernels do the last
// ones. Each group of vector instructions is preceded by the scalar formula that it computes.

#include "kernels/arm/neon_delta.h"

#include "kernels/delta_tables.h"

namespace bf16codecs {
namespace {

constexpr size_t kItems = 8;  // in a vector

BF16CODECS_INLINE uint16x8_t load(const uint8_t* items) {
  return vreinterpretq_u16_u8(vld1q_u8(items));
}

BF16CODECS_INLINE uint16x8_t words(unsigned v) {
  return vdupq_n_u16(static_cast<uint16_t>(v));
}
// Counts of shifts; those to the right are negative.
BF16CODECS_INLINE int16x8_t counts(int v) {
  return vdupq_n_s16(static_cast<int16_t>(v));
}

// All bits of words that are negative, otherwise none.
BF16CODECS_INLINE uint16x8_t sign_mask(uint16x8_t v) {
  return vcltzq_s16(vreinterpretq_s16_u16(v));
}
BF16CODECS_INLINE uint16x8_t magnitude(uint16x8_t v) {
  return vandq_u16(v, words(0x7FFF));
}
// d < 0 ? -2 d - 1 : 2 d
BF16CODECS_INLINE uint16x8_t zigzag(uint16x8_t d) {
  return veorq_u16(vaddq_u16(d, d), sign_mask(d));
}
// z % 2 ? -(z + 1) / 2 : z / 2
BF16CODECS_INLINE uint16x8_t unzigzag(uint16x8_t z) {
  return veorq_u16(vshrq_n_u16(z, 1), vtstq_u16(z, words(1)));
}

// --- classes -------------------------------------------------------------------------------------

class Classifier {
 public:
  explicit BF16CODECS_INLINE Classifier(const DeltaShape& shape)
      : origin_(vdupq_n_s16(static_cast<int16_t>(shape.origin))),
        exponent_(counts(1 - static_cast<int>(shape.fraction))),
        step_(counts(-static_cast<int>(shape.shift))),
        last_(vdup_n_u8(static_cast<uint8_t>(shape.places - 1))) {
    for (unsigned i = 0; i < 4; ++i) class_of_.val[i] = vld1q_u8(shape.class_of + 16 * i);
  }

  // class_of[clamp((scale - 16 exponent + origin) >> step, 0, places - 1)], of eight items, in
  // signed words that saturate. The origin less the exponent's part is at least -16383 - 4080, and
  // the last place begins below 1024. So a sum that saturates is in the last place, and so is one
  // of a scale above 32767, which counts as 32767. Narrowing with unsigned saturation makes
  // negative places 0.
  BF16CODECS_INLINE uint8x8_t classes(const uint8_t* base, const uint16_t* scales) const {
    const uint16x8_t exponent = vshlq_u16(magnitude(load(base)), exponent_);
    const int16x8_t from = vsubq_s16(origin_, vreinterpretq_s16_u16(vshlq_n_u16(exponent, 4)));
    const int16x8_t scale = vreinterpretq_s16_u16(vminq_u16(vld1q_u16(scales), words(0x7FFF)));
    const int16x8_t place = vshlq_s16(vqaddq_s16(scale, from), step_);
    return vqtbl4_u8(class_of_, vmin_u8(vqmovun_s16(place), last_));
  }

 private:
  int16x8_t origin_, exponent_, step_;
  uint8x8_t last_;
  uint8x16x4_t class_of_;
};

void classify16(const DeltaShape& shape, const uint8_t* base, const uint16_t* scales, size_t n,
                uint8_t* classes) {
  const Classifier classifier(shape);
  size_t i = 0;
  for (; i + kItems <= n; i += kItems) {
    vst1_u8(classes + i, classifier.classes(base + 2 * i, scales + i));
  }
  kScalarDeltaKernels.classify16(shape, base + 2 * i, scales + i, n - i, classes + i);
}

// --- numbers -------------------------------------------------------------------------------------

// Items to numbers and back, with a shape's constants in registers.
//
// One formula serves near classes and the others, which are called ordered here: both count from a
// magnitude. Let s be all bits if b and x have different signs, otherwise none. Then (|x| ^ s) -
// |b| is order(x) - order(b), or order(b) - order(x) if b is negative, because order(u) is |u|, or
// ~|u| if u is negative. In the other direction, s is the sign of |x| ^ s.
class Numbers {
 public:
  explicit BF16CODECS_INLINE Numbers(const DeltaShape& shape)
      : near_(words(shape.near)),
        above_raw_(words(~0u << shape.near_raw)),
        sign_(words(1u << shape.near_raw)),
        most_(words((1u << (21 - shape.fraction)) - 1)),
        to_top_(counts(15 - static_cast<int>(shape.near_raw))),
        hidden_(counts(static_cast<int>(shape.fraction) - 5)) {}

  // Which of eight items are counted in order, without a sign.
  BF16CODECS_INLINE uint16x8_t ordered(const uint8_t* classes) const {
    return vcltq_u16(vmovl_u8(vld1_u8(classes)), near_);
  }

  // The magnitude to count from, modulo 2^16: if ordered |b|, otherwise
  // max(|b|, (scale >> 4) << (fraction - 1)). Where the second term has more than 16 bits, it is
  // larger than any |b|, and its low 16 bits are the result.
  BF16CODECS_INLINE uint16x8_t anchor(uint16x8_t b, uint16x8_t scale, uint16x8_t is_ordered) const {
    const uint16x8_t whole = vandq_u16(vbicq_u16(words(0xFFF0), is_ordered), scale);
    const uint16x8_t fits = vcleq_u16(whole, most_);
    return vmaxq_u16(vandq_u16(magnitude(b), fits), vshlq_u16(whole, hidden_));
  }

  // y >> r << (r + 1) | sign << r | (y & (2^r - 1)), but 65535 if that is more, which is where y
  // has its highest bit set
  BF16CODECS_INLINE uint16x8_t insert_sign(uint16x8_t y, uint16x8_t sign) const {
    const uint16x8_t spread = vaddq_u16(y, vandq_u16(y, above_raw_));
    return vorrq_u16(vorrq_u16(spread, vandq_u16(sign, sign_)), sign_mask(y));
  }
  // y = ordered ? number : number >> (r + 1) << r | (number & (2^r - 1))
  BF16CODECS_INLINE uint16x8_t without_sign(uint16x8_t number, uint16x8_t is_ordered) const {
    return vbslq_u16(vbicq_u16(above_raw_, is_ordered), vshrq_n_u16(number, 1), number);
  }
  // Bit r as the highest bit, with others below.
  BF16CODECS_INLINE uint16x8_t sign(uint16x8_t number) const { return vshlq_u16(number, to_top_); }

 private:
  uint16x8_t near_, above_raw_, sign_, most_;
  int16x8_t to_top_, hidden_;
};

void subtract16(const DeltaShape& shape, const uint8_t* base, const uint8_t* items,
                const uint16_t* scales, const uint8_t* classes, size_t n, uint16_t* numbers) {
  const Numbers shaped(shape);
  size_t i = 0;
  for (; i + kItems <= n; i += kItems) {
    const uint16x8_t b = load(base + 2 * i), x = load(items + 2 * i);
    const uint16x8_t is_ordered = shaped.ordered(classes + i);
    const uint16x8_t differ = sign_mask(veorq_u16(b, x));
    // y = zigzag((|x| ^ (ordered ? s : 0)) - anchor)
    const uint16x8_t to = veorq_u16(magnitude(x), vandq_u16(differ, is_ordered));
    const uint16x8_t from = shaped.anchor(b, vld1q_u16(scales + i), is_ordered);
    const uint16x8_t y = zigzag(vsubq_u16(to, from));
    vst1q_u16(numbers + i, vbslq_u16(is_ordered, y, shaped.insert_sign(y, differ)));
  }
  kScalarDeltaKernels.subtract16(shape, base + 2 * i, items + 2 * i, scales + i, classes + i, n - i,
                                 numbers + i);
}

void add16(const DeltaShape& shape, const uint8_t* base, const uint16_t* numbers,
           const uint16_t* scales, const uint8_t* classes, size_t n, uint8_t* items) {
  const Numbers shaped(shape);
  size_t i = 0;
  for (; i + kItems <= n; i += kItems) {
    const uint16x8_t b = load(base + 2 * i), number = vld1q_u16(numbers + i);
    const uint16x8_t is_ordered = shaped.ordered(classes + i);
    const uint16x8_t y = shaped.without_sign(number, is_ordered);
    // to = anchor + unzigzag(y),  s = sign of (ordered ? to : number << (15 - r))
    const uint16x8_t from = shaped.anchor(b, vld1q_u16(scales + i), is_ordered);
    const uint16x8_t to = vaddq_u16(from, unzigzag(y));
    const uint16x8_t differs = vbslq_u16(is_ordered, to, shaped.sign(number));
    // |x| = to ^ (ordered ? s : 0), and x's sign is s xor b's
    const uint16x8_t x = veorq_u16(to, vandq_u16(sign_mask(to), is_ordered));
    const uint16x8_t item = vbslq_u16(words(0x7FFF), x, veorq_u16(differs, b));
    vst1q_u8(items + 2 * i, vreinterpretq_u8_u16(item));
  }
  kScalarDeltaKernels.add16(shape, base + 2 * i, numbers + i, scales + i, classes + i, n - i,
                            items + 2 * i);
}

}  // namespace

const DeltaKernels kNeonDeltaKernels = {classify16,        subtract16,      add16,
                                        neon_delta_decode, spell_out_slots, kDeltaSlots,
                                        neon_delta_encode};

}  // namespace bf16codecs
