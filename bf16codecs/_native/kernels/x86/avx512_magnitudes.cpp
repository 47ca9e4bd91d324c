// Sums of magnitudes for AVX-512, 32 keys at a time, the last ones by masked loads. The order of
// the additions differs from the scalar definition, but not the sums, as magnitudes are integers.
// Each group of vector instructions is preceded by the scalar formula that it computes.

#include "kernels/x86/avx512.h"

namespace bf16codecs {
namespace {

// Keys that 32 sums of 32 bits hold: each is of 255 magnitudes of at most 2^24.
constexpr size_t kSummed = 32 * 255;

class Magnitudes {
 public:
  explicit BF16CODECS_INLINE Magnitudes(const MagnitudeShape& shape)
      : first_(_mm512_set1_epi16(static_cast<short>(shape.first))),
        last_(_mm512_set1_epi16(static_cast<short>(shape.last))),
        bias_(_mm512_set1_epi32(static_cast<int>(shape.bias))),
        shift_(_mm_cvtsi32_si128(static_cast<int>(shape.shift))) {}

  // 32 keys: min(max(key, first), last)
  BF16CODECS_INLINE __m512i inside(__m512i keys) const {
    return _mm512_min_epu16(_mm512_max_epu16(keys, first_), last_);
  }
  // 16 of them: the float of (key << shift) + bias
  BF16CODECS_INLINE __m512 number(__m256i keys) const {
    const __m512i wide = _mm512_cvtepu16_epi32(keys);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_sll_epi32(wide, shift_), bias_));
  }

 private:
  __m512i first_, last_, bias_;
  __m128i shift_;
};

BF16CODECS_INLINE __m256i low_half(__m512i v) {
  return _mm512_castsi512_si256(v);
}
BF16CODECS_INLINE __m256i high_half(__m512i v) {
  return _mm512_extracti64x4_epi64(v, 1);
}

BF16CODECS_INLINE __m512 cut(__m512 x) {
  return _mm512_min_ps(x, _mm512_set1_ps(kMostMagnitude));
}

// The sum of 16 numbers of 32 bits.
BF16CODECS_INLINE uint64_t sum_of(__m512i v) {
  const __m512i low = _mm512_and_si512(v, _mm512_set1_epi64(0xFFFFFFFF));
  const __m512i pairs = _mm512_add_epi64(low, _mm512_srli_epi64(v, 32));
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(pairs));
}

// The mask of the first n <= 32 keys.
BF16CODECS_INLINE __mmask32 mask_of(size_t n) {
  return n < 32 ? (1u << n) - 1 : 0xFFFFFFFF;
}
BF16CODECS_INLINE __mmask16 low_half(__mmask32 mask) {
  return static_cast<__mmask16>(mask);
}
BF16CODECS_INLINE __mmask16 high_half(__mmask32 mask) {
  return static_cast<__mmask16>(mask >> 16);
}

struct Sum {
  __m512i low, high;  // sums of the first 16 of each 32 keys, and of the others
  size_t nonzero;
};

// sum += magnitude of each of 32 keys that is in the mask. Keys outside of it are read as 0, whose
// magnitude is that of `first`: so the conversion is masked as well.
template <bool has_weights>
BF16CODECS_INLINE void add_to(const Magnitudes& magnitudes, const uint16_t* keys,
                              const float* weights, __mmask32 mask, Sum& sum) {
  const __mmask16 low = low_half(mask), high = high_half(mask);
  const __m512i key = _mm512_maskz_loadu_epi16(mask, keys), inside = magnitudes.inside(key);
  __m512 x = magnitudes.number(low_half(inside)), y = magnitudes.number(high_half(inside));
  if constexpr (has_weights) {
    x = _mm512_mul_ps(x, _mm512_maskz_loadu_ps(low, weights));
    y = _mm512_mul_ps(y, _mm512_maskz_loadu_ps(high, weights + 16));
  }
  sum.low = _mm512_add_epi32(sum.low, _mm512_maskz_cvttps_epi32(low, cut(x)));
  sum.high = _mm512_add_epi32(sum.high, _mm512_maskz_cvttps_epi32(high, cut(y)));
  sum.nonzero += popcount(_mm512_cmpgt_epu16_mask(key, _mm512_set1_epi16(1)));
}

template <bool has_weights>
MagnitudeSum sum_all(const MagnitudeShape& shape, const uint16_t* keys, const float* weights,
                     size_t n) {
  const Magnitudes magnitudes(shape);
  MagnitudeSum total{0, 0};
  const auto weights_at = [&](size_t i) { return has_weights ? weights + i : nullptr; };
  for (size_t i = 0; i < n;) {
    const size_t end = n - i < kSummed ? n : i + kSummed;
    Sum sum{_mm512_setzero_si512(), _mm512_setzero_si512(), 0};
    for (; i + 32 <= end; i += 32) {
      add_to<has_weights>(magnitudes, keys + i, weights_at(i), mask_of(32), sum);
    }
    if (i < end) {
      add_to<has_weights>(magnitudes, keys + i, weights_at(i), mask_of(end - i), sum);
      i = end;
    }
    total.sum += sum_of(sum.low) + sum_of(sum.high);
    total.nonzero += sum.nonzero;
  }
  return total;
}

MagnitudeSum sum(const MagnitudeShape& shape, const uint16_t* keys, const float* weights,
                 size_t n) {
  return weights == nullptr ? sum_all<false>(shape, keys, weights, n)
                            : sum_all<true>(shape, keys, weights, n);
}

// sums[i] += magnitude of each of 32 keys that is in the mask
BF16CODECS_INLINE void add_each(const Magnitudes& magnitudes, const uint16_t* keys, __m512 weight,
                                __mmask32 mask, uint32_t* sums) {
  const __mmask16 low = low_half(mask), high = high_half(mask);
  const __m512i inside = magnitudes.inside(_mm512_maskz_loadu_epi16(mask, keys));
  const __m512 x = _mm512_mul_ps(magnitudes.number(low_half(inside)), weight);
  const __m512 y = _mm512_mul_ps(magnitudes.number(high_half(inside)), weight);
  const __m512i a = _mm512_maskz_loadu_epi32(low, sums);
  const __m512i b = _mm512_maskz_loadu_epi32(high, sums + 16);
  _mm512_mask_storeu_epi32(sums, low, _mm512_add_epi32(a, _mm512_cvttps_epi32(cut(x))));
  _mm512_mask_storeu_epi32(sums + 16, high, _mm512_add_epi32(b, _mm512_cvttps_epi32(cut(y))));
}

void add(const MagnitudeShape& shape, const uint16_t* keys, float weight, size_t n,
         uint32_t* sums) {
  const Magnitudes magnitudes(shape);
  const __m512 weights = _mm512_set1_ps(weight);
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    add_each(magnitudes, keys + i, weights, mask_of(32), sums + i);
  }
  if (i < n) add_each(magnitudes, keys + i, weights, mask_of(n - i), sums + i);
}

}  // namespace

const MagnitudeKernels kAvx512MagnitudeKernels = {.sum = sum, .add = add};

}  // namespace bf16codecs
