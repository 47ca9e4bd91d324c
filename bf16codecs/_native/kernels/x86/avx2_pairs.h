#pragma once

// What the pairs mode's decoder and encoder for AVX2 share (docs/format.md, "rANS plane, pairs").
// The states are those of x86/avx2_words.h. Byte 2 k of the low halves, which are the slots, is
// lane k's first symbol, and byte 2 k + 1 its second, which is 32 places on.
//
// Each file that includes this has a copy of its own, built for its instruction set.

#include "kernels/x86/avx2_words.h"

namespace bf16codecs {
namespace {

// a >= b, of unsigned numbers, for which AVX2 has no comparison.
BF16CODECS_INLINE __m256i bytes_at_least(__m256i a, __m256i b) {
  return _mm256_cmpeq_epi8(_mm256_max_epu8(a, b), a);
}

// An index into a row of 16 bytes that has its highest bit set, and so selects 0, unless a byte's
// high half is that of `row`, whose bytes are 16 times the row's number.
BF16CODECS_INLINE __m256i index_in_row(__m256i bytes, __m256i row) {
  return _mm256_adds_epu8(_mm256_xor_si256(bytes, row), _mm256_set1_epi8(0x70));
}

// The first bytes of 16 words and the first bytes of 16 others in turn, and the second ones.
BF16CODECS_INLINE __m256i first_bytes(__m256i even, __m256i odd) {
  return _mm256_or_si256(_mm256_and_si256(even, _mm256_set1_epi16(255)), _mm256_slli_epi16(odd, 8));
}
BF16CODECS_INLINE __m256i second_bytes(__m256i even, __m256i odd) {
  return _mm256_or_si256(_mm256_srli_epi16(even, 8),
                         _mm256_andnot_si256(_mm256_set1_epi16(255), odd));
}

// The highest bits of 64 bytes.
BF16CODECS_INLINE uint64_t byte_mask(__m256i low, __m256i high) {
  return static_cast<uint32_t>(_mm256_movemask_epi8(low)) |
         static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(high))) << 32;
}

}  // namespace
}  // namespace bf16codecs
