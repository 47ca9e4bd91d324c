// The loops of grids, which compilers make vectors of; and items of 16 bits by runs of one scale.
// Of codes without low bits, and of floats as bfloat16, the products of a run's scale are looked up
// by bytes, 16 at a time. Integers as bfloat16 with low bits, or in short runs with offsets, are
// multiplied.

#include "kernels/arm/neon.h"
#include "kernels/quantized_levels.h"

namespace bf16codecs {
namespace {

// A table of the low and the high bytes of 32 words.
struct WordTable {
  uint8x16x2_t low, high;

  explicit BF16CODECS_INLINE WordTable(const uint8_t words[64]) {
    const uint8x16x2_t first = vld2q_u8(words), second = vld2q_u8(words + 32);
    low.val[0] = first.val[0], low.val[1] = second.val[0];
    high.val[0] = first.val[1], high.val[1] = second.val[1];
  }
};

// Of codes without low bits.
template <Formula kFormula, Precision kPrecision, Container kContainer>
class SymbolProducts {
 public:
  static constexpr size_t kStep = 16;
  static constexpr unsigned kParts = 0;

  SymbolProducts(const Levels& levels, const LowBits[]) : levels_(levels) {}

  struct OfRun {
    WordTable words;

    BF16CODECS_INLINE void items(const Codes& codes, uint8_t* out) const {
      const uint8x16_t indices = vandq_u8(vld1q_u8(codes.symbols), vdupq_n_u8(31));
      uint8x16x2_t bytes;
      bytes.val[0] = vqtbl2q_u8(words.low, indices);
      bytes.val[1] = vqtbl2q_u8(words.high, indices);
      vst2q_u8(out, bytes);
    }
  };
  BF16CODECS_INLINE OfRun start(const ScaleRuns& runs, size_t r) const {
    alignas(16) uint8_t words[64];
    multiply_levels<kFormula, kPrecision, kContainer>(levels_.of, runs, r, words);
    return {WordTable(words)};
  }

 private:
  SymbolLevels levels_;
};

// Where the low bits of a part belong, as the lowest bits of a code: shifted left, or right if the
// number is negative, and of these `mask`.
struct LowShift {
  int8_t shift;
  uint8_t mask;

  LowShift() = default;
  LowShift(const LowBits& low, unsigned end) {
    const LowPlace place(low, end);
    shift = static_cast<int8_t>(place.shift), mask = static_cast<uint8_t>(place.mask);
  }
  BF16CODECS_INLINE uint8x16_t of(const uint8_t* packed) const {
    return vandq_u8(vshlq_u8(vld1q_u8(packed), vdupq_n_s8(shift)), vdupq_n_u8(mask));
  }
};

// Of all parts, in bytes.
template <unsigned kParts>
struct LowBytes {
  LowShift parts[kParts + 1];

  LowBytes(const LowBits low[], unsigned low_bits) {
    for (unsigned p = 0; p < kParts; ++p) {
      parts[p] = LowShift(low[p], low_bits);
      low_bits -= low[p].bits;
    }
  }
  BF16CODECS_INLINE uint8x16_t of(const Codes& codes) const {
    if constexpr (kParts == 0) return vdupq_n_u8(0);
    const uint8x16_t first = parts[0].of(codes.packed[0]);
    if constexpr (kParts < 2) return first;
    return vorrq_u8(first, parts[kParts - 1].of(codes.packed[1]));
  }
};

// Of floats as bfloat16: the products of the first octaves are looked up.
template <unsigned kParts_>
class FloatProducts {
 public:
  static constexpr size_t kStep = 16;
  static constexpr unsigned kParts = kParts_;

  FloatProducts(const Levels& levels, const LowBits low[]) : low_(low, levels.low_bits) {
    const FloatLevels numbers(levels);
    for (unsigned i = 0; i < 16; ++i) {
      levels_[i] = numbers.subnormal[i];
      levels_[16 + i] = numbers.normal[i];
    }
  }

  // The words of subnormal products, and of normal ones an octave down.
  struct OfRun {
    WordTable words;
    LowBytes<kParts> low;

    BF16CODECS_INLINE void items(const Codes& codes, uint8_t* out) const {
      const uint8x16_t exponents = vandq_u8(vld1q_u8(codes.symbols), vdupq_n_u8(31));
      const uint8x16_t second = vandq_u8(vcgtq_u8(exponents, vdupq_n_u8(0)), vdupq_n_u8(16));
      const uint8x16_t indices = vorrq_u8(low.of(codes), second);
      const uint8x16_t lower = vqtbl2q_u8(words.low, indices);
      const uint8x16_t upper = vqtbl2q_u8(words.high, indices);
      put(vzip1q_u8(lower, upper), vshll_n_u8(vget_low_u8(exponents), 7), out);
      put(vzip2q_u8(lower, upper), vshll_n_u8(vget_high_u8(exponents), 7), out + 16);
    }

   private:
    BF16CODECS_INLINE static void put(uint8x16_t bytes, uint16x8_t octaves, uint8_t* out) {
      vst1q_u8(out, vreinterpretq_u8_u16(vaddq_u16(vreinterpretq_u16_u8(bytes), octaves)));
    }
  };
  BF16CODECS_INLINE OfRun start(const ScaleRuns& runs, size_t r) const {
    alignas(16) uint8_t words[64];
    multiply_levels<Formula::product, Precision::bfloat16, Container::bfloat16>(levels_, runs, r,
                                                                                words);
    for (uint8_t* at = words + 32; at != words + 64; at += 16) {
      const uint16x8_t normal = vreinterpretq_u16_u8(vld1q_u8(at));
      vst1q_u8(at, vreinterpretq_u8_u16(vsubq_u16(normal, vdupq_n_u16(kOctave))));
    }
    return {WordTable(words), low_};
  }

 private:
  alignas(16) float levels_[32];
  LowBytes<kParts> low_;
};

// --- integers as bfloat16

// Rounds eight numbers to bfloat16. The instruction rounds ties up: where the lower half is
// 0x8000, the number was a tie, and its word must be even.
BF16CODECS_INLINE uint16x8_t rounded_words(float32x4_t first, float32x4_t second) {
  const uint32x4_t x = vreinterpretq_u32_f32(first), y = vreinterpretq_u32_f32(second);
  const uint16x8_t words = vrshrn_high_n_u32(vrshrn_n_u32(x, 16), y, 16);
  const uint16x8_t rest = vuzp1q_u16(vreinterpretq_u16_u32(x), vreinterpretq_u16_u32(y));
  const uint16x8_t is_tie = vceqq_u16(rest, vdupq_n_u16(0x8000));
  return vbicq_u16(words, vshrq_n_u16(is_tie, 15));
}

// Half rounds numbers to bfloat16: with_offset() in quantized_items.h.
BF16CODECS_INLINE float32x4_t half_rounded(float32x4_t x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t is_odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t sum = vaddq_u32(bits, vaddq_u32(is_odd, vdupq_n_u32(0x7FFF)));
  return vreinterpretq_f32_u32(vandq_u32(sum, vdupq_n_u32(0xFFFF0000)));
}

// What is rounded to be an item.
template <Formula kFormula>
BF16CODECS_INLINE float32x4_t combined(float32x4_t level, float32x4_t scale,
                                       [[maybe_unused]] float32x4_t offset) {
  if constexpr (kFormula == Formula::difference)
    return vmulq_f32(half_rounded(vsubq_f32(level, offset)), scale);
  const float32x4_t product = vmulq_f32(level, scale);
  if constexpr (kFormula == Formula::sum) return vaddq_f32(product, offset);
  if constexpr (kFormula == Formula::rounded_sum) return vaddq_f32(half_rounded(product), offset);
  return product;
}

template <Formula kFormula, unsigned kParts_>
class IntegerProducts {
 public:
  static constexpr size_t kStep = 16;
  static constexpr unsigned kParts = kParts_;

  // The scales of 16 items and, but for products, their offsets.
  struct OfItems {
    float32x4_t scales[4], offsets[4];
  };

  IntegerProducts(const Levels& levels, const LowBits low[])
      : shift_(static_cast<int16_t>(levels.low_bits)),
        zero_(static_cast<int16_t>(16 << levels.low_bits)),
        low_(low, levels.low_bits) {}

  struct OfRun {
    const IntegerProducts& all;
    OfItems of;

    BF16CODECS_INLINE void items(const Codes& codes, uint8_t* out) const {
      all.items(codes, of, out);
    }
  };
  BF16CODECS_INLINE OfRun start(const ScaleRuns& runs, size_t r) const {
    OfItems of;
    for (unsigned i = 0; i < 4; ++i) {
      of.scales[i] = vdupq_n_f32(runs.scales[r]);
      of.offsets[i] = of.scales[i];
      if constexpr (kFormula != Formula::product) of.offsets[i] = vdupq_n_f32(runs.offsets[r]);
    }
    return {*this, of};
  }

  // Of a scale for each item, and an offset.
  BF16CODECS_INLINE static OfItems load_each(const ScaleRuns& runs, size_t at) {
    OfItems of;
    for (unsigned i = 0; i < 4; ++i) {
      of.scales[i] = vld1q_f32(runs.scales + at + 4 * i);
      of.offsets[i] = of.scales[i];
      if constexpr (kFormula != Formula::product)
        of.offsets[i] = vld1q_f32(runs.offsets + at + 4 * i);
    }
    return of;
  }

  BF16CODECS_INLINE void items(const Codes& codes, const OfItems& of, uint8_t* out) const {
    const uint8x16_t symbols = vandq_u8(vld1q_u8(codes.symbols), vdupq_n_u8(31));
    const uint8x16_t low = low_.of(codes);
    const int16x8_t shift = vdupq_n_s16(shift_);
    const uint16x8_t first =
        vaddw_u8(vshlq_u16(vmovl_u8(vget_low_u8(symbols)), shift), vget_low_u8(low));
    const uint16x8_t second = vaddw_high_u8(vshlq_u16(vmovl_high_u8(symbols), shift), low);
    float32x4_t levels[4];
    levels_of(first, levels);
    levels_of(second, levels + 2);
    if (vminvq_u16(vminq_u16(first, second)) == 0) [[unlikely]] {
      for (float32x4_t& level : levels) level = with_negative_zeros(level);
    }
    for (unsigned i = 0; i < 4; i += 2) {
      const uint16x8_t words =
          rounded_words(combined<kFormula>(levels[i], of.scales[i], of.offsets[i]),
                        combined<kFormula>(levels[i + 1], of.scales[i + 1], of.offsets[i + 1]));
      vst1q_u8(out + 8 * i, vreinterpretq_u8_u16(words));
    }
  }

 private:
  BF16CODECS_INLINE void levels_of(uint16x8_t codes, float32x4_t levels[2]) const {
    const int16x8_t numbers = vsubq_s16(vreinterpretq_s16_u16(codes), vdupq_n_s16(zero_));
    levels[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(numbers)));
    levels[1] = vcvtq_f32_s32(vmovl_high_s16(numbers));
  }
  // The code for -0 is that of the lowest number.
  BF16CODECS_INLINE float32x4_t with_negative_zeros(float32x4_t levels) const {
    const uint32x4_t is_zero = vceqq_f32(levels, vdupq_n_f32(static_cast<float>(-zero_)));
    return vbslq_f32(is_zero, vdupq_n_f32(-0.0f), levels);
  }

  int16_t shift_, zero_;
  LowBytes<kParts> low_;
};

// Integers without low bits, times scales: the products of 16 magnitudes are looked up, and those
// of negative levels differ from them by the sign only.
class MagnitudeProducts {
 public:
  static constexpr size_t kStep = 16;
  static constexpr unsigned kParts = 0;

  struct OfRun {
    uint8x16_t low, high;  // bytes

    BF16CODECS_INLINE void items(const Codes& codes, uint8_t* out) const {
      const uint8x16_t symbols = vandq_u8(vld1q_u8(codes.symbols), vdupq_n_u8(31));
      const int8x16_t levels = vreinterpretq_s8_u8(vsubq_u8(symbols, vdupq_n_u8(16)));
      const uint8x16_t signs = vandq_u8(vreinterpretq_u8_s8(levels), vdupq_n_u8(0x80));
      // Of the code for -0, the magnitude is 16, and the index 0.
      const uint8x16_t magnitudes = vreinterpretq_u8_s8(vabsq_s8(levels));
      const uint8x16_t indices = vandq_u8(magnitudes, vdupq_n_u8(15));
      uint8x16x2_t bytes;
      bytes.val[0] = vqtbl1q_u8(low, indices);
      bytes.val[1] = veorq_u8(vqtbl1q_u8(high, indices), signs);
      vst2q_u8(out, bytes);
    }
  };
  BF16CODECS_INLINE static OfRun start(const ScaleRuns& runs, size_t r) {
    static constexpr float kMagnitudes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const float32x4_t scale = vdupq_n_f32(runs.scales[r]);
    const auto products = [&](unsigned i) { return vmulq_f32(vld1q_f32(kMagnitudes + i), scale); };
    const uint8x16_t first = vreinterpretq_u8_u16(rounded_words(products(0), products(4)));
    const uint8x16_t second = vreinterpretq_u8_u16(rounded_words(products(8), products(12)));
    return {vuzp1q_u8(first, second), vuzp2q_u8(first, second)};
  }
};

}  // namespace
}  // namespace bf16codecs

#include "kernels/quantized_runs.h"

namespace bf16codecs {

const QuantizedKernels kNeonQuantizedKernels =
    BF16CODECS_QUANTIZED_KERNELS(least_run, multiply_runs);

}  // namespace bf16codecs
