#pragma once

// Helpers that the kernels for AVX-512 share, and their declarations. Everything is static, so that
// each file has a copy of its own.

#include <immintrin.h>

#include "kernels/kernels.h"

namespace bf16codecs {

// The immediates of _mm512_ternarylogic_epi32(a, b, c, ...) in these files. Bit 4 a + 2 b + c of an
// immediate is the result for bits a, b and c.
//
//   0xCA   a ? b : c
//   0xEA   a & b | c
//   0xF8   a | b & c
//   0xF2   a | ~b & c
//   0x5F   ~(a & c)

static BF16CODECS_INLINE unsigned popcount(unsigned v) {
  return static_cast<unsigned>(_mm_popcnt_u32(v));
}
static BF16CODECS_INLINE uint64_t popcount64(uint64_t v) {
  return static_cast<uint64_t>(_mm_popcnt_u64(v));
}
static BF16CODECS_INLINE __m512i load(const void* p) {
  return _mm512_loadu_si512(p);
}
static BF16CODECS_INLINE void store(void* p, __m512i v) {
  _mm512_storeu_si512(p, v);
}

// Makes 32 items, rotated back, of low bytes and of words that have the high byte in bits 7 to 14
// and noise elsewhere: (word & 0x7F80) | low >> 1 | low << 15. 0xCA takes words where the mask is
// set, otherwise `outer`.
static BF16CODECS_INLINE __m512i merge(__m512i words, __m256i low) {
  const __m512i z = _mm512_cvtepu8_epi16(low);
  const __m512i outer = _mm512_or_si512(_mm512_srli_epi16(z, 1), _mm512_slli_epi16(z, 15));
  return _mm512_ternarylogic_epi32(_mm512_set1_epi16(0x7F80), words, outer, 0xCA);
}

static BF16CODECS_INLINE __m256i load32(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

size_t avx512_pairs_decode(PairsDecoder& decoder, const uint8_t* limit, uint8_t* plane,
                           size_t steps);
size_t avx512_pairs_decode16(PairsDecoder& decoder, const uint8_t* limit, const uint8_t* low,
                             uint8_t* items, size_t steps);
void avx512_pairs_encode(PairsEncoder& encoder, const uint8_t* plane, size_t steps);
size_t avx512vbmi2_pairs_decode(PairsDecoder& decoder, const uint8_t* limit, uint8_t* plane,
                                size_t steps);
size_t avx512vbmi2_pairs_decode16(PairsDecoder& decoder, const uint8_t* limit, const uint8_t* low,
                                  uint8_t* items, size_t steps);
void avx512vbmi2_pairs_encode(PairsEncoder& encoder, const uint8_t* plane, size_t steps);
size_t avx512_huffman_pack(BitSink& sink, const uint16_t entries[kPackEntries],
                           const uint8_t* symbols, size_t n);

void avx512_tile_order(const uint16_t* scales, size_t n, TileOrder& order);
void avx512_tile_decode(TileDecoder& decoder, const TileTable tables[], const uint8_t* classes,
                        size_t steps, uint8_t* symbols);
void avx512_tile_encode(TileEncoder& encoder, const TileCodeTable tables[], const uint8_t* classes,
                        size_t steps, const uint8_t* symbols);

extern const DeltaKernels kAvx512DeltaKernels;
extern const DeltaKernels kAvx512Vbmi2DeltaKernels;
extern const MagnitudeKernels kAvx512MagnitudeKernels;
extern const TileKernels kAvx512TileKernels;
extern const TileKernels kAvx512Vbmi2TileKernels;

}  // namespace bf16codecs
