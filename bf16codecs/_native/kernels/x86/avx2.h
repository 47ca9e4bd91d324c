#pragma once

// Helpers that the kernels for AVX2 share, and their declarations. Everything is static, so that
// each file has a copy of its own.

#include <immintrin.h>

#include "kernels/kernels.h"

namespace bf16codecs {

static BF16CODECS_INLINE unsigned popcount(unsigned v) {
  return static_cast<unsigned>(_mm_popcnt_u32(v));
}
static BF16CODECS_INLINE __m256i load(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
static BF16CODECS_INLINE void store(void* p, __m256i v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}
static BF16CODECS_INLINE __m128i load16(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
static BF16CODECS_INLINE void store16(void* p, __m128i v) {
  _mm_storeu_si128(static_cast<__m128i*>(p), v);
}

// 16 bytes in both halves of a register, for shuffles.
static BF16CODECS_INLINE __m256i twice(const uint8_t bytes[16]) {
  return _mm256_broadcastsi128_si256(load16(bytes));
}

// How many bits of each byte are set.
static BF16CODECS_INLINE __m256i count_in_bytes(__m256i v) {
  static constexpr uint8_t kCounts[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
  const __m256i counts = twice(kCounts), nibble = _mm256_set1_epi8(15);
  const __m256i low = _mm256_shuffle_epi8(counts, _mm256_and_si256(v, nibble));
  const __m256i high =
      _mm256_shuffle_epi8(counts, _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble));
  return _mm256_add_epi8(low, high);
}

// Exchanges the middle quarters, which packs and unpacks of two halves of 128 bits leave exchanged.
static BF16CODECS_INLINE __m256i in_order(__m256i v) {
  return _mm256_permute4x64_epi64(v, 0xD8);
}

static BF16CODECS_INLINE __m256i words_of(unsigned v) {
  return _mm256_set1_epi16(static_cast<short>(v));
}

// Two registers of words below 256 to one of bytes, in order. packus takes the halves of 128 bits
// in turn, v0 w0 v1 w1 in quarters of 64 bits; the permute brings them to v0 v1 w0 w1.
static BF16CODECS_INLINE __m256i pack(__m256i v, __m256i w) {
  return in_order(_mm256_packus_epi16(v, w));
}

// Makes 16 items, rotated back, of low bytes and of words that have the high byte in bits 7 to 14
// and noise elsewhere: (word & 0x7F80) | low >> 1 | low << 15.
static BF16CODECS_INLINE __m256i merge(__m256i words, __m128i low) {
  const __m256i z = _mm256_cvtepu8_epi16(low);
  const __m256i outer = _mm256_or_si256(_mm256_srli_epi16(z, 1), _mm256_slli_epi16(z, 15));
  return _mm256_or_si256(_mm256_and_si256(words, _mm256_set1_epi16(0x7F80)), outer);
}

void avx2_histogram(const uint8_t* plane, size_t n, uint8_t window, uint32_t counts[256]);
size_t avx2_pairs_decode(PairsDecoder& decoder, const uint8_t* limit, uint8_t* plane, size_t steps);
size_t avx2_pairs_decode16(PairsDecoder& decoder, const uint8_t* limit, const uint8_t* low,
                           uint8_t* items, size_t steps);
void avx2_pairs_encode(PairsEncoder& encoder, const uint8_t* plane, size_t steps);

extern const MagnitudeKernels kAvx2MagnitudeKernels;

}  // namespace bf16codecs
