// Packing Huffman codes with AVX-512: codes are looked up in registers and joined pairwise, until
// one 64-bit number has the codes of 16 symbols; only those go through the bit buffer.

#include <cstring>

#include "kernels/x86/avx512.h"

namespace bf16codecs {
namespace {

// Codes and how many bits they have together, in each 64-bit lane.
struct Codes {
  __m512i bits, length;
};

// Bits that one put can take, with up to 7 left from the one before.
constexpr int64_t kMaxPut = 56;

struct Writer {
  uint64_t bits;
  unsigned count;
  uint8_t* out;

  BF16CODECS_INLINE void put(uint64_t codes, uint64_t length) {
    bits |= codes << count;
    count += static_cast<unsigned>(length);
    std::memcpy(out, &bits, sizeof bits);
    out += count / 8;
    bits >>= count & ~7u;
    count %= 8;
  }
  BF16CODECS_INLINE void put8(__m512i codes, __m512i lengths) {
    alignas(64) uint64_t code[8], length[8];
    _mm512_store_si512(code, codes);
    _mm512_store_si512(length, lengths);
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < 8; ++i) put(code[i], length[i]);
  }
  BF16CODECS_INLINE void put4(__m256i codes, __m256i lengths) {
    alignas(32) uint64_t code[4], length[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(code), codes);
    _mm256_store_si256(reinterpret_cast<__m256i*>(length), lengths);
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < 4; ++i) put(code[i], length[i]);
  }
};

// Four symbols a lane, from 32 symbols: entries of 16 bits are joined to 32, these to 64.
BF16CODECS_INLINE Codes look_up(const uint8_t* symbols, __m512i low_half, __m512i high_half) {
  const __m512i words = _mm512_cvtepu8_epi16(load32(symbols));
  const __m512i entries = _mm512_permutex2var_epi16(low_half, words, high_half);
  const __m512i length = _mm512_srli_epi16(entries, kPackLengthAt);
  const __m512i code = _mm512_and_si512(entries, _mm512_set1_epi16((1 << kLongestCode) - 1));

  // second << length of first | first; a sum of the lengths
  const __m512i low16 = _mm512_set1_epi32(0xFFFF);
  const __m512i second = _mm512_srli_epi32(code, 16);
  const __m512i code2 = _mm512_or_si512(_mm512_sllv_epi32(second, _mm512_and_si512(length, low16)),
                                        _mm512_and_si512(code, low16));
  const __m512i length2 = _mm512_madd_epi16(length, _mm512_set1_epi16(1));

  const __m512i low32 = _mm512_set1_epi64(0xFFFFFFFF);
  const __m512i first_length = _mm512_and_si512(length2, low32);
  const __m512i code4 =
      _mm512_or_si512(_mm512_sllv_epi64(_mm512_srli_epi64(code2, 32), first_length),
                      _mm512_and_si512(code2, low32));
  return {code4, _mm512_add_epi64(first_length, _mm512_srli_epi64(length2, 32))};
}

}  // namespace

size_t avx512_huffman_pack(BitSink& sink, const uint16_t entries[kPackEntries],
                           const uint8_t* symbols, size_t n) {
  const __m512i low_half = load(entries), high_half = load(entries + 32);
  Writer writer{sink.bits, sink.count, sink.out};
  size_t i = 0;
  for (; n - i >= kPackSymbols && sink.end - writer.out >= kPackRoom; i += kPackSymbols) {
    const Codes a = look_up(symbols + i, low_half, high_half);
    const Codes b = look_up(symbols + i + 32, low_half, high_half);

    // Eight symbols a lane: of a and b in turn, since unpacking joins neighbours within 128 bits.
    const __m512i length_low = _mm512_unpacklo_epi64(a.length, b.length);
    const __m512i code8 =
        _mm512_or_si512(_mm512_unpacklo_epi64(a.bits, b.bits),
                        _mm512_sllv_epi64(_mm512_unpackhi_epi64(a.bits, b.bits), length_low));
    const __m512i length8 = _mm512_add_epi64(length_low, _mm512_unpackhi_epi64(a.length, b.length));

    // Sixteen: lanes 0, 4 (a), 1, 5 (b) and their next but one. What is longer than a lane is lost
    // here, but then the sum of the lengths says so.
    const __m512i first = _mm512_setr_epi64(0, 4, 1, 5, 0, 0, 0, 0);
    const __m512i second = _mm512_setr_epi64(2, 6, 3, 7, 0, 0, 0, 0);
    const auto half = [](__m512i lanes, __m512i v) {
      return _mm512_castsi512_si256(_mm512_permutexvar_epi64(lanes, v));
    };
    const __m256i first_length = half(first, length8);
    const __m256i length16 = _mm256_add_epi64(first_length, half(second, length8));
    if (_mm256_cmpgt_epi64_mask(length16, _mm256_set1_epi64x(kMaxPut)) == 0) {
      const __m256i code16 =
          _mm256_or_si256(half(first, code8), _mm256_sllv_epi64(half(second, code8), first_length));
      writer.put4(code16, length16);
    } else if (_mm512_cmpgt_epi64_mask(length8, _mm512_set1_epi64(kMaxPut)) == 0) {
      const __m512i in_order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
      writer.put8(_mm512_permutexvar_epi64(in_order, code8),
                  _mm512_permutexvar_epi64(in_order, length8));
    } else {
      writer.put8(a.bits, a.length);
      writer.put8(b.bits, b.length);
    }
  }
  sink = {writer.bits, writer.count, writer.out, sink.end};
  return i;
}

}  // namespace bf16codecs
