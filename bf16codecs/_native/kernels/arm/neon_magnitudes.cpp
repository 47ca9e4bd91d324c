// Sums of magnitudes for NEON, 8 keys at a time; the scalar kernels do the last ones. The order of
// the additions differs from the scalar definition, but not the sums, as magnitudes are integers.
// Each group of vector instructions is preceded by the scalar formula that it computes.

#include "kernels/arm/neon.h"

namespace bf16codecs {
namespace {

// Keys that 8 sums of 32 bits hold: each is of 255 magnitudes of at most 2^24.
constexpr size_t kSummed = 8 * 255;

class Magnitudes {
 public:
  explicit BF16CODECS_INLINE Magnitudes(const MagnitudeShape& shape)
      : first_(vdupq_n_u16(shape.first)),
        last_(vdupq_n_u16(shape.last)),
        bias_(vdupq_n_u32(shape.bias)),
        shift_(vdupq_n_s32(static_cast<int32_t>(shape.shift))) {}

  // 8 keys: min(max(key, first), last)
  BF16CODECS_INLINE uint16x8_t inside(uint16x8_t keys) const {
    return vminq_u16(vmaxq_u16(keys, first_), last_);
  }
  // 4 of them: the float of (key << shift) + bias
  BF16CODECS_INLINE float32x4_t number(uint16x4_t keys) const {
    return vreinterpretq_f32_u32(vaddq_u32(vshlq_u32(vmovl_u16(keys), shift_), bias_));
  }

 private:
  uint16x8_t first_, last_;
  uint32x4_t bias_;
  int32x4_t shift_;
};

// min(x, kMostMagnitude), rounded down
BF16CODECS_INLINE uint32x4_t whole(float32x4_t x) {
  return vcvtq_u32_f32(vminq_f32(x, vdupq_n_f32(kMostMagnitude)));
}

struct Sum {
  uint32x4_t low, high;  // sums of the first 4 of each 8 keys, and of the others
  uint16x8_t nonzero;
};

// sum += magnitude of each of 8 keys
template <bool has_weights>
BF16CODECS_INLINE void add_to(const Magnitudes& magnitudes, const uint16_t* keys,
                              const float* weights, Sum& sum) {
  const uint16x8_t key = vld1q_u16(keys), inside = magnitudes.inside(key);
  float32x4_t x = magnitudes.number(vget_low_u16(inside));
  float32x4_t y = magnitudes.number(vget_high_u16(inside));
  if constexpr (has_weights) {
    x = vmulq_f32(x, vld1q_f32(weights));
    y = vmulq_f32(y, vld1q_f32(weights + 4));
  }
  sum.low = vaddq_u32(sum.low, whole(x));
  sum.high = vaddq_u32(sum.high, whole(y));
  // A comparison that holds is all ones, -1.
  sum.nonzero = vsubq_u16(sum.nonzero, vcgtq_u16(key, vdupq_n_u16(1)));
}

template <bool has_weights>
MagnitudeSum sum_all(const MagnitudeShape& shape, const uint16_t* keys, const float* weights,
                     size_t n) {
  const Magnitudes magnitudes(shape);
  const auto weights_at = [&](size_t i) { return has_weights ? weights + i : nullptr; };
  MagnitudeSum total{0, 0};
  const size_t in_vectors = n / 8 * 8;
  for (size_t i = 0; i < in_vectors;) {
    const size_t end = in_vectors - i < kSummed ? in_vectors : i + kSummed;
    Sum sum{vdupq_n_u32(0), vdupq_n_u32(0), vdupq_n_u16(0)};
    for (; i < end; i += 8) add_to<has_weights>(magnitudes, keys + i, weights_at(i), sum);
    total.sum += vaddlvq_u32(sum.low) + vaddlvq_u32(sum.high);
    total.nonzero += vaddlvq_u16(sum.nonzero);
  }
  const MagnitudeSum rest =
      kScalarMagnitudeKernels.sum(shape, keys + in_vectors, weights_at(in_vectors), n - in_vectors);
  return {total.sum + rest.sum, total.nonzero + rest.nonzero};
}

MagnitudeSum sum(const MagnitudeShape& shape, const uint16_t* keys, const float* weights,
                 size_t n) {
  return weights == nullptr ? sum_all<false>(shape, keys, weights, n)
                            : sum_all<true>(shape, keys, weights, n);
}

void add(const MagnitudeShape& shape, const uint16_t* keys, float weight, size_t n,
         uint32_t* sums) {
  const Magnitudes magnitudes(shape);
  const float32x4_t weights = vdupq_n_f32(weight);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const uint16x8_t inside = magnitudes.inside(vld1q_u16(keys + i));
    const float32x4_t x = vmulq_f32(magnitudes.number(vget_low_u16(inside)), weights);
    const float32x4_t y = vmulq_f32(magnitudes.number(vget_high_u16(inside)), weights);
    // sums[i] += magnitude
    vst1q_u32(sums + i, vaddq_u32(vld1q_u32(sums + i), whole(x)));
    vst1q_u32(sums + i + 4, vaddq_u32(vld1q_u32(sums + i + 4), whole(y)));
  }
  if (i < n) kScalarMagnitudeKernels.add(shape, keys + i, weight, n - i, sums + i);
}

}  // namespace

const MagnitudeKernels kNeonMagnitudeKernels = {.sum = sum, .add = add};

}  // namespace bf16codecs
