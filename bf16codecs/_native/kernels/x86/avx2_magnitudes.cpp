// Sums of magnitudes for AVX2, 16 keys at a time; the scalar kernels do the last ones. The order of
// the additions differs from the scalar definition, but not the sums, as magnitudes are integers.
// Each group of vector instructions is preceded by the scalar formula that it computes.

#include "kernels/x86/avx2.h"

namespace bf16codecs {
namespace {

// Keys that 16 sums of 32 bits hold: each is of 255 magnitudes of at most 2^24.
constexpr size_t kSummed = 16 * 255;

class Magnitudes {
 public:
  explicit BF16CODECS_INLINE Magnitudes(const MagnitudeShape& shape)
      : first_(_mm256_set1_epi16(static_cast<short>(shape.first))),
        last_(_mm256_set1_epi16(static_cast<short>(shape.last))),
        bias_(_mm256_set1_epi32(static_cast<int>(shape.bias))),
        shift_(_mm_cvtsi32_si128(static_cast<int>(shape.shift))) {}

  // 16 keys: min(max(key, first), last)
  BF16CODECS_INLINE __m256i inside(__m256i keys) const {
    return _mm256_min_epu16(_mm256_max_epu16(keys, first_), last_);
  }
  // 8 of them: the float of (key << shift) + bias
  BF16CODECS_INLINE __m256 number(__m128i keys) const {
    const __m256i wide = _mm256_cvtepu16_epi32(keys);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_sll_epi32(wide, shift_), bias_));
  }

 private:
  __m256i first_, last_, bias_;
  __m128i shift_;
};

BF16CODECS_INLINE __m128i low_half(__m256i v) {
  return _mm256_castsi256_si128(v);
}
BF16CODECS_INLINE __m128i high_half(__m256i v) {
  return _mm256_extracti128_si256(v, 1);
}

// min(x, kMostMagnitude), rounded down
BF16CODECS_INLINE __m256i whole(__m256 x) {
  return _mm256_cvttps_epi32(_mm256_min_ps(x, _mm256_set1_ps(kMostMagnitude)));
}

// The sum of 8 numbers of 32 bits.
BF16CODECS_INLINE uint64_t sum_of(__m256i v) {
  const __m256i low = _mm256_and_si256(v, _mm256_set1_epi64x(0xFFFFFFFF));
  alignas(32) uint64_t sums[4];
  store(sums, _mm256_add_epi64(low, _mm256_srli_epi64(v, 32)));
  return sums[0] + sums[1] + sums[2] + sums[3];
}

struct Sum {
  __m256i low, high;  // sums of the first 8 of each 16 keys, and of the others
  __m256i zeros;      // minus the number of keys below 2, in words: -255 at the least
};

// sum += magnitude of each of 16 keys
template <bool has_weights>
BF16CODECS_INLINE void add_to(const Magnitudes& magnitudes, const uint16_t* keys,
                              const float* weights, Sum& sum) {
  const __m256i key = load(keys), inside = magnitudes.inside(key);
  __m256 x = magnitudes.number(low_half(inside)), y = magnitudes.number(high_half(inside));
  if constexpr (has_weights) {
    x = _mm256_mul_ps(x, _mm256_loadu_ps(weights));
    y = _mm256_mul_ps(y, _mm256_loadu_ps(weights + 8));
  }
  sum.low = _mm256_add_epi32(sum.low, whole(x));
  sum.high = _mm256_add_epi32(sum.high, whole(y));
  // max(key, 1) == 1
  const __m256i one = _mm256_set1_epi16(1);
  sum.zeros = _mm256_add_epi16(sum.zeros, _mm256_cmpeq_epi16(_mm256_max_epu16(key, one), one));
}

template <bool has_weights>
MagnitudeSum sum_all(const MagnitudeShape& shape, const uint16_t* keys, const float* weights,
                     size_t n) {
  const Magnitudes magnitudes(shape);
  const auto weights_at = [&](size_t i) { return has_weights ? weights + i : nullptr; };
  MagnitudeSum total{0, 0};
  const size_t in_vectors = n / 16 * 16;
  for (size_t i = 0; i < in_vectors;) {
    const size_t begin = i, end = in_vectors - i < kSummed ? in_vectors : i + kSummed;
    const __m256i zero = _mm256_setzero_si256();
    Sum sum{zero, zero, zero};
    for (; i < end; i += 16) add_to<has_weights>(magnitudes, keys + i, weights_at(i), sum);
    total.sum += sum_of(sum.low) + sum_of(sum.high);
    // Times -1, and added in pairs to 32 bits.
    const __m256i zeros = _mm256_madd_epi16(sum.zeros, _mm256_set1_epi16(-1));
    total.nonzero += end - begin - sum_of(zeros);
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
  const __m256 weights = _mm256_set1_ps(weight);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i inside = magnitudes.inside(load(keys + i));
    const __m256 x = _mm256_mul_ps(magnitudes.number(low_half(inside)), weights);
    const __m256 y = _mm256_mul_ps(magnitudes.number(high_half(inside)), weights);
    // sums[i] += magnitude
    store(sums + i, _mm256_add_epi32(load(sums + i), whole(x)));
    store(sums + i + 8, _mm256_add_epi32(load(sums + i + 8), whole(y)));
  }
  if (i < n) kScalarMagnitudeKernels.add(shape, keys + i, weight, n - i, sums + i);
}

}  // namespace

const MagnitudeKernels kAvx2MagnitudeKernels = {.sum = sum, .add = add};

}  // namespace bf16codecs
