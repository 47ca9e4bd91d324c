// Packing Huffman codes with AVX-512 (docs/format.md, "Huffman plane", "Streams"). Codes of 64
// symbols are looked up in two registers and joined pairwise, until a 64-bit number has those of 16
// symbols; only these numbers go one by one through the bit buffer. 0.42 cycles a symbol, where
// joining 8 symbols takes 0.64, and a table of pairs without vectors 0.65 (docs/experiments.md,
// "Huffman").
//
// Each join is `second << length of first | first`: the codes of earlier symbols are in lower bits.
//
//   symbols a number   1        2        4        8        16
//   bits at most       11       22       44       88       176
//   lanes of           16       32       64       64       64 bits
//
// So up to four symbols always fit. From eight on the sum of the lengths tells whether they do, and
// where it is above kMaxPut, fewer are put at a time.

#include <cstring>

#include "kernels/x86/avx512.h"

namespace bf16codecs {
namespace {

// The joined codes of some symbols and their length in bits, in each 64-bit lane.
struct Codes {
  __m512i bits, length;
};

// Bits that one put can take: with up to 7 left from the put before, the bit buffer holds 63.
constexpr int64_t kMaxPut = 56;

// The bit buffer: count < 8 between puts. Each put stores 8 bytes and advances by the whole bytes.
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

// Joins 32 symbols to eight lanes of four. A permute takes the index modulo 64, which is a symbol's
// low 6 bits.
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

    // Eight symbols a lane. Unpacking joins neighbours within 128 bits, so that the even lanes are
    // of a, the odd ones of b: lane 0 has symbols 0-7, lane 1 32-39, lane 2 8-15, lane 3 40-47, and
    // so on.
    const __m512i length_low = _mm512_unpacklo_epi64(a.length, b.length);
    const __m512i code8 =
        _mm512_or_si512(_mm512_unpacklo_epi64(a.bits, b.bits),
                        _mm512_sllv_epi64(_mm512_unpackhi_epi64(a.bits, b.bits), length_low));
    const __m512i length8 = _mm512_add_epi64(length_low, _mm512_unpackhi_epi64(a.length, b.length));

    // Sixteen symbols a lane: lanes 0, 4 (of a), 1, 5 (of b), each joined with the next one of the
    // same half. Bits above 64 are lost here, but then the length is above kMaxPut.
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
