// Kernels for AVX-512 F, BW, DQ and VL that are not of a coder: docs/format.md, "Checksum" and
// "Element layout", and counts. They differ from scalar.cpp in that they take 64 bytes at a time,
// and the last items by masked loads and stores, which do not touch memory outside of the mask.
// Each group of vector instructions is preceded by the scalar formula that it computes.

#include "kernels/x86/avx512.h"
#include "kernels/bits.h"

namespace bf16codecs {
namespace {

void checksum(ChecksumState& state, const uint8_t* bytes, size_t stripes) {
  // Lanes 0-7 and 8-15 of the sixteen, which are the first and second 64 bytes of a stripe.
  __m512i a0 = load(state.a), a1 = load(state.a + 8);
  __m512i c0 = load(state.c), c1 = load(state.c + 8);
  for (; stripes != 0; --stripes, bytes += 128) {
    // a += v, c = rotl(c, 23) + a
    a0 = _mm512_add_epi64(a0, load(bytes));
    a1 = _mm512_add_epi64(a1, load(bytes + 64));
    c0 = _mm512_add_epi64(_mm512_rol_epi64(c0, 23), a0);
    c1 = _mm512_add_epi64(_mm512_rol_epi64(c1, 23), a1);
  }
  store(state.a, a0), store(state.a + 8, a1);
  store(state.c, c0), store(state.c + 8, c1);
}

// item << 1 | item >> 15
BF16CODECS_INLINE __m512i rotated(__m512i items) {
  return _mm512_or_si512(_mm512_slli_epi16(items, 1), _mm512_srli_epi16(items, 15));
}

void load_keys16(const uint8_t* items, size_t n, uint16_t* keys) {
  size_t i = 0;
  for (; i + 32 <= n; i += 32) store(keys + i, rotated(load(items + 2 * i)));
  if (i < n) {
    const __mmask32 rest = (1u << (n - i)) - 1;
    const __m512i v = _mm512_maskz_loadu_epi16(rest, items + 2 * i);
    _mm512_mask_storeu_epi16(keys + i, rest, rotated(v));
  }
}

// Of 16 items, as binary32 numbers: bits = |item - base|;  (bits is normal ? bits : 0) >> 15 | 2.
// Infinities and what is not a number have an exponent of 255, and bits that are not below
// infinity's; subnormal numbers and zero have an exponent of 0, and fail the test with infinity.
BF16CODECS_INLINE __m256i distances(__m256i base, __m256i items) {
  const __m512i infinity = _mm512_set1_epi32(0x7F800000);
  const auto number = [&](__m256i v) {
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16);
    const __mmask16 is_normal = _mm512_test_epi32_mask(bits, infinity);
    return _mm512_castsi512_ps(_mm512_maskz_mov_epi32(is_normal, bits));
  };
  const __m512i bits =
      _mm512_castps_si512(_mm512_abs_ps(_mm512_sub_ps(number(items), number(base))));
  const __mmask16 is_finite = _mm512_cmplt_epi32_mask(bits, infinity);
  const __mmask16 is_normal = _mm512_mask_test_epi32_mask(is_finite, bits, infinity);
  const __m512i keys = _mm512_maskz_srli_epi32(is_normal, bits, 15);
  // Below 0xFF00, so that 16 bits hold them.
  return _mm512_cvtepi32_epi16(_mm512_or_si512(keys, _mm512_set1_epi32(2)));
}

void load_distances16(const uint8_t* base, const uint8_t* items, size_t n, uint16_t* keys) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i v = distances(load32(base + 2 * i), load32(items + 2 * i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(keys + i), v);
  }
  if (i < n) kScalarKernels.load_distances16(base + 2 * i, items + 2 * i, n - i, keys + i);
}

// High byte of 32 items rotated left by one: item >> 7; low byte: item << 1 | item >> 15.
BF16CODECS_INLINE __m256i high_bytes(__m512i items) {
  return _mm512_cvtepi16_epi8(_mm512_srli_epi16(items, 7));
}
BF16CODECS_INLINE __m256i low_bytes(__m512i items) {
  return _mm512_cvtepi16_epi8(rotated(items));
}

void split16(const uint8_t* items, size_t n, uint8_t* high, uint8_t* low) {
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m512i v = load(items + 2 * i);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(high + i), high_bytes(v));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(low + i), low_bytes(v));
  }
  if (i < n) {
    const __mmask32 rest = (1u << (n - i)) - 1;
    const __m512i v = _mm512_maskz_loadu_epi16(rest, items + 2 * i);
    _mm256_mask_storeu_epi8(high + i, rest, high_bytes(v));
    _mm256_mask_storeu_epi8(low + i, rest, low_bytes(v));
  }
}

void merge16(const uint8_t* high, const uint8_t* low, size_t n, uint8_t* items) {
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m512i words = _mm512_slli_epi16(_mm512_cvtepu8_epi16(load32(high + i)), 7);
    store(items + 2 * i, merge(words, load32(low + i)));
  }
  if (i < n) {
    const __mmask32 rest = (1u << (n - i)) - 1;
    const __m512i words =
        _mm512_slli_epi16(_mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(rest, high + i)), 7);
    _mm512_mask_storeu_epi16(items + 2 * i, rest,
                             merge(words, _mm256_maskz_loadu_epi8(rest, low + i)));
  }
}

// Byte counters overflow at 256, so they are summed after this many vectors: a vector adds at most
// 1 to a counter.
constexpr size_t kCountedVectors = 255;

// count[s] counts symbol window + s: byte i counts its occurrences in byte i of the vectors. The
// sixteen counters fit in registers; symbols outside of the window are counted one by one.
void histogram(const uint8_t* plane, size_t n, uint8_t window, uint32_t counts[256]) {
  const __m512i first = _mm512_set1_epi8(static_cast<char>(window));
  size_t i = 0;
  while (i + 64 <= n) {
    const size_t end = i + 64 * kCountedVectors < n ? i + 64 * kCountedVectors : n;
    __m512i count[kWindowSymbols];
    BF16CODECS_UNROLL16
    for (unsigned s = 0; s < kWindowSymbols; ++s) count[s] = _mm512_setzero_si512();
    for (; i + 64 <= end; i += 64) {
      const __m512i symbols = _mm512_sub_epi8(load(plane + i), first);
      // count[s] += symbol == s
      BF16CODECS_UNROLL16
      for (unsigned s = 0; s < kWindowSymbols; ++s) {
        count[s] = _mm512_mask_sub_epi8(
            count[s], _mm512_cmpeq_epi8_mask(symbols, _mm512_set1_epi8(static_cast<char>(s))),
            count[s], _mm512_set1_epi8(-1));
      }
      uint64_t others = _mm512_cmpge_epu8_mask(symbols, _mm512_set1_epi8(kWindowSymbols));
      for (; others != 0; others &= others - 1) ++counts[plane[i + first_bit(others)]];
    }
    BF16CODECS_UNROLL16
    for (unsigned s = 0; s < kWindowSymbols; ++s) {
      const __m512i sums = _mm512_sad_epu8(count[s], _mm512_setzero_si512());
      counts[(window + s) & 255] += static_cast<uint32_t>(_mm512_reduce_add_epi64(sums));
    }
  }
  for (; i < n; ++i) ++counts[plane[i]];
}

// Sums saturate at 32767, which is not below `most`, and cannot fall below -32768, as the row is
// not negative.
void add_columns(const int16_t* columns, unsigned step, int row, int most, size_t n,
                 uint16_t* scales) {
  const __m512i from = _mm512_set1_epi16(static_cast<int16_t>(row));
  const __m512i limit = _mm512_set1_epi16(static_cast<int16_t>(most));
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(step));
  const auto scales_of = [&](__m512i v) {
    const __m512i sum = _mm512_adds_epi16(from, _mm512_sll_epi16(v, shift));
    return _mm512_max_epi16(_mm512_min_epi16(sum, limit), _mm512_setzero_si512());
  };
  size_t i = 0;
  for (; i + 32 <= n; i += 32) store(scales + i, scales_of(load(columns + i)));
  if (i < n) {
    const __mmask32 rest = (1u << (n - i)) - 1;
    _mm512_mask_storeu_epi16(scales + i, rest,
                             scales_of(_mm512_maskz_loadu_epi16(rest, columns + i)));
  }
}

// How many bits of each byte are set.
BF16CODECS_INLINE __m512i count_in_bytes(__m512i v) {
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i counts =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
  const __m512i low = _mm512_shuffle_epi8(counts, _mm512_and_si512(v, nibble));
  const __m512i high =
      _mm512_shuffle_epi8(counts, _mm512_and_si512(_mm512_srli_epi16(v, 4), nibble));
  return _mm512_add_epi8(low, high);
}

// 64 bytes at a time: the counts of bytes, at most 8, are added for 31 rounds before they are added
// up.
size_t differing_bits(const uint8_t* a, const uint8_t* b, size_t n) {
  constexpr size_t kSummed = 64 * (255 / 8);
  const size_t in_vectors = n / 8 * 64;
  __m512i sums = _mm512_setzero_si512();
  for (size_t i = 0; i < in_vectors;) {
    const size_t end = in_vectors - i < kSummed ? in_vectors : i + kSummed;
    __m512i counts = _mm512_setzero_si512();
    for (; i < end; i += 64) {
      const __m512i differing = _mm512_xor_si512(load(a + i), load(b + i));
      counts = _mm512_add_epi8(counts, count_in_bytes(differing));
    }
    sums = _mm512_add_epi64(sums, _mm512_sad_epu8(counts, _mm512_setzero_si512()));
  }
  return static_cast<size_t>(_mm512_reduce_add_epi64(sums)) +
         kScalarKernels.differing_bits(a + in_vectors, b + in_vectors, n % 8);
}

void differing_words(const uint8_t* a, const uint8_t* b, size_t n, uint64_t* masks) {
  for (size_t g = 0; g < n; ++g) {
    uint64_t mask = 0;
    for (unsigned i = 0; i < 64; i += 8, a += 64, b += 64) {
      mask |= uint64_t{_mm512_cmpneq_epi64_mask(load(a), load(b))} << i;
    }
    masks[g] = mask;
  }
}

constexpr Kernels kAvx512{
    .name = "avx512",
    .checksum = checksum,
    .load_keys16 = load_keys16,
    .load_distances16 = load_distances16,
    .split16 = split16,
    .merge16 = merge16,
    .histogram = histogram,
    .magnitudes = &kAvx512MagnitudeKernels,
    .pairs_decode = avx512_pairs_decode,
    .pairs_decode16 = avx512_pairs_decode16,
    .pairs_encode = avx512_pairs_encode,
    .huffman_pack = avx512_huffman_pack,
    .add_columns = add_columns,
    .differing_bits = differing_bits,
    .differing_words = differing_words,
    .quantized = &kAvx512QuantizedKernels,
    .tiles = &kAvx512TileKernels,
    .delta = &kAvx512DeltaKernels,
    .sparse = &kAvx2SparseKernels,
};

constexpr Kernels with_vbmi2() {
  Kernels kernels = kAvx512;
  kernels.name = "avx512vbmi2";
  kernels.pairs_decode = avx512vbmi2_pairs_decode;
  kernels.pairs_decode16 = avx512vbmi2_pairs_decode16;
  kernels.pairs_encode = avx512vbmi2_pairs_encode;
  kernels.tiles = &kAvx512Vbmi2TileKernels;
  kernels.delta = &kAvx512Vbmi2DeltaKernels;
  kernels.sparse = &kAvx512Vbmi2SparseKernels;
  return kernels;
}

constexpr Kernels with_bf16() {
  Kernels kernels = with_vbmi2();
  kernels.name = "avx512bf16";
  kernels.quantized = &kAvx512Bf16QuantizedKernels;
  return kernels;
}

}  // namespace

constexpr Kernels kAvx512Kernels = kAvx512;
constexpr Kernels kAvx512Vbmi2Kernels = with_vbmi2();
constexpr Kernels kAvx512Bf16Kernels = with_bf16();

}  // namespace bf16codecs
