// Kernels for AVX2 that are not of a coder: docs/format.md, "Checksum" and "Element layout", and
// sums. They differ from scalar.cpp in that they take 16 or 32 items at a time; the scalar
// kernels do the last ones. Each group of vector instructions is preceded by the scalar formula
// that it computes.

#include "kernels/bits.h"
#include "kernels/x86/avx2_delta.h"
#include "kernels/x86/avx2_tiles.h"

namespace bf16codecs {
namespace {

void checksum(ChecksumState& state, const uint8_t* bytes, size_t stripes) {
  // a[i] has lanes 4 i ... 4 i + 3 of the sixteen.
  __m256i a[4], c[4];
  for (unsigned i = 0; i < 4; ++i) a[i] = load(state.a + 4 * i), c[i] = load(state.c + 4 * i);
  for (; stripes != 0; --stripes, bytes += 128) {
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      // a += v, c = rotl(c, 23) + a
      a[i] = _mm256_add_epi64(a[i], load(bytes + 32 * i));
      c[i] = _mm256_add_epi64(
          _mm256_or_si256(_mm256_slli_epi64(c[i], 23), _mm256_srli_epi64(c[i], 41)), a[i]);
    }
  }
  for (unsigned i = 0; i < 4; ++i) store(state.a + 4 * i, a[i]), store(state.c + 4 * i, c[i]);
}

// item << 1 | item >> 15
BF16CODECS_INLINE __m256i rotated(__m256i items) {
  return _mm256_or_si256(_mm256_slli_epi16(items, 1), _mm256_srli_epi16(items, 15));
}

void load_keys16(const uint8_t* items, size_t n, uint16_t* keys) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) store(keys + i, rotated(load(items + 2 * i)));
  if (i < n) kScalarKernels.load_keys16(items + 2 * i, n - i, keys + i);
}

// Of the lower or the upper four items of each 128 bits, as binary32 numbers: bits = |item - base|;
// (bits is normal ? bits : 0) >> 15. An item is the upper half of a binary32 number: unpacking puts
// it above a zero word. Without signs, bits compare as signed numbers.
template <bool kUpper>
BF16CODECS_INLINE __m256i distances(__m256i base, __m256i items) {
  const __m256i zero = _mm256_setzero_si256(), infinity = _mm256_set1_epi32(0x7F800000);
  const auto normal = [&](__m256i v) {
    return _mm256_andnot_si256(_mm256_cmpeq_epi32(_mm256_and_si256(v, infinity), zero), v);
  };
  const auto number = [&](__m256i v) {
    return _mm256_castsi256_ps(
        normal(kUpper ? _mm256_unpackhi_epi16(zero, v) : _mm256_unpacklo_epi16(zero, v)));
  };
  const __m256i difference = _mm256_castps_si256(_mm256_sub_ps(number(items), number(base)));
  const __m256i bits = _mm256_and_si256(difference, _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i is_finite = _mm256_cmpgt_epi32(infinity, bits);
  return _mm256_srli_epi32(_mm256_and_si256(normal(bits), is_finite), 15);
}

void load_distances16(const uint8_t* base, const uint8_t* items, size_t n, uint16_t* keys) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i b = load(base + 2 * i), x = load(items + 2 * i);
    // Packing undoes the unpacking: both work within 128 bits. Distances are below 0xFF00.
    const __m256i both = _mm256_packus_epi32(distances<false>(b, x), distances<true>(b, x));
    store(keys + i, _mm256_or_si256(both, _mm256_set1_epi16(2)));
  }
  if (i < n) kScalarKernels.load_distances16(base + 2 * i, items + 2 * i, n - i, keys + i);
}

void split16(const uint8_t* items, size_t n, uint8_t* high, uint8_t* low) {
  const __m256i byte = _mm256_set1_epi16(255);
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i v = rotated(load(items + 2 * i)), w = rotated(load(items + 2 * i + 32));
    store(high + i, pack(_mm256_srli_epi16(v, 8), _mm256_srli_epi16(w, 8)));
    store(low + i, pack(_mm256_and_si256(v, byte), _mm256_and_si256(w, byte)));
  }
  if (i < n) kScalarKernels.split16(items + 2 * i, n - i, high + i, low + i);
}

void merge16(const uint8_t* high, const uint8_t* low, size_t n, uint8_t* items) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i words = _mm256_slli_epi16(_mm256_cvtepu8_epi16(load16(high + i)), 7);
    store(items + 2 * i, merge(words, load16(low + i)));
  }
  if (i < n) kScalarKernels.merge16(high + i, low + i, n - i, items + 2 * i);
}

// Sums saturate at 32767, which is not below `most`, and cannot fall below -32768, as the row is
// not negative.
void add_columns(const int16_t* columns, unsigned step, int row, int most, size_t n,
                 uint16_t* scales) {
  const __m256i from = _mm256_set1_epi16(static_cast<int16_t>(row));
  const __m256i limit = _mm256_set1_epi16(static_cast<int16_t>(most));
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(step));
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i sum = _mm256_adds_epi16(from, _mm256_sll_epi16(load(columns + i), shift));
    store(scales + i, _mm256_max_epi16(_mm256_min_epi16(sum, limit), _mm256_setzero_si256()));
  }
  kScalarKernels.add_columns(columns + i, step, row, most, n - i, scales + i);
}

// 32 bytes at a time: the counts of bytes, at most 8, are added for 31 rounds before they are added
// up.
size_t differing_bits(const uint8_t* a, const uint8_t* b, size_t n) {
  constexpr size_t kSummed = 32 * (255 / 8);
  const size_t in_vectors = n / 4 * 32;
  __m256i sums = _mm256_setzero_si256();
  for (size_t i = 0; i < in_vectors;) {
    const size_t end = in_vectors - i < kSummed ? in_vectors : i + kSummed;
    __m256i counts = _mm256_setzero_si256();
    for (; i < end; i += 32) {
      const __m256i differing = _mm256_xor_si256(load(a + i), load(b + i));
      counts = _mm256_add_epi8(counts, count_in_bytes(differing));
    }
    sums = _mm256_add_epi64(sums, _mm256_sad_epu8(counts, _mm256_setzero_si256()));
  }
  alignas(32) uint64_t parts[4];
  store(parts, sums);
  return static_cast<size_t>(parts[0] + parts[1] + parts[2] + parts[3]) +
         kScalarKernels.differing_bits(a + in_vectors, b + in_vectors, n % 4);
}

void differing_words(const uint8_t* a, const uint8_t* b, size_t n, uint64_t* masks) {
  for (size_t g = 0; g < n; ++g) {
    uint64_t equal = 0;
    for (unsigned i = 0; i < 64; i += 4, a += 32, b += 32) {
      const __m256d words = _mm256_castsi256_pd(_mm256_cmpeq_epi64(load(a), load(b)));
      equal |= uint64_t{static_cast<unsigned>(_mm256_movemask_pd(words))} << i;
    }
    masks[g] = ~equal;
  }
}

}  // namespace

const Kernels kAvx2Kernels = {
    .name = "avx2",
    .checksum = checksum,
    .load_keys16 = load_keys16,
    .load_distances16 = load_distances16,
    .split16 = split16,
    .merge16 = merge16,
    .histogram = avx2_histogram,
    .magnitudes = &kAvx2MagnitudeKernels,
    .pairs_decode = avx2_pairs_decode,
    .pairs_decode16 = avx2_pairs_decode16,
    .pairs_encode = avx2_pairs_encode,
    .huffman_pack = nullptr,
    .add_columns = add_columns,
    .differing_bits = differing_bits,
    .differing_words = differing_words,
    .quantized = &kAvx2QuantizedKernels,
    .tiles = &kAvx2TileKernels,
    .delta = &kAvx2DeltaKernels,
    .sparse = &kAvx2SparseKernels,
};

}  // namespace bf16codecs
