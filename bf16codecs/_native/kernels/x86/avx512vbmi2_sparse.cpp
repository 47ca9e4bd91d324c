// Kernels of sparse planes for AVX-512 VBMI2, which differ from kernels/sparse.cpp in that they
// expand and pack 64 symbols at a time. The scalar kernels do the last ones.

#include <cstring>

#include "kernels/bits.h"
#include "kernels/x86/avx512vbmi2_planes.h"

namespace bf16codecs {
namespace {

// 64 bits from a bit of some bytes on; reads nine bytes.
BF16CODECS_INLINE uint64_t load_bits(const uint8_t* bytes, size_t bit) {
  uint64_t low;
  std::memcpy(&low, bytes + bit / 8, sizeof low);
  const uint64_t high = bytes[bit / 8 + 8];
  return low >> bit % 8 | high << 1 << (63 - bit % 8);
}

template <bool kHasSigns>
BF16CODECS_INLINE void expand_symbols(SparseDecoder& d, const uint8_t* first, size_t n,
                                      uint8_t* plane) {
  const __m512i zero = _mm512_set1_epi8(static_cast<char>(d.zero));
  const __m512i value = _mm512_set1_epi8(static_cast<char>(d.value));
  const uint8_t* symbols = d.symbols;
  size_t sign = d.sign;
  for (size_t i = 0; i < n; i += 64) {
    const __m512i others = load_early(symbols);
    const uint64_t zeros = _mm512_cmpeq_epi8_mask(load(first + i), zero);
    __m512i of_zeros = value;
    if constexpr (kHasSigns) {
      const __m512i bits = _mm512_maskz_set1_epi8(load_bits(d.signs, sign), 1);
      of_zeros = _mm512_or_si512(value, _mm512_maskz_expand_epi8(zeros, bits));
      sign += count_bits(zeros);
    }
    store(plane + i, _mm512_mask_expand_epi8(of_zeros, ~zeros, others));
    symbols += 64 - count_bits(zeros);
  }
  d.symbols = symbols;
  d.sign = sign;
}

void expand(SparseDecoder& d, const uint8_t* first, size_t n, uint8_t* plane) {
  const size_t whole = n / 64 * 64;
  if (d.has_signs) {
    expand_symbols<true>(d, first, whole, plane);
  } else {
    expand_symbols<false>(d, first, whole, plane);
  }
  kScalarSparseKernels.expand(d, first + whole, n - whole, plane + whole);
}

// Adds `count` bits, those above them 0, to bits that are 0 from `at` on.
BF16CODECS_INLINE void add_bits(uint8_t* bytes, size_t& at, uint64_t bits, unsigned count) {
  uint64_t low;
  std::memcpy(&low, bytes + at / 8, sizeof low);
  low |= bits << at % 8;
  std::memcpy(bytes + at / 8, &low, sizeof low);
  bytes[at / 8 + 8] = static_cast<uint8_t>(bits >> 1 >> (63 - at % 8));
  at += count;
}

size_t pack(SparseEncoder& e, const uint8_t* first, const uint8_t* plane, size_t n) {
  const __m512i zero = _mm512_set1_epi8(static_cast<char>(e.zero));
  const __m512i value = _mm512_set1_epi8(static_cast<char>(e.value));
  const __m512i one = _mm512_set1_epi8(1);
  const size_t whole = n / 64 * 64;
  uint8_t* out = e.symbols;
  size_t sign = e.sign, others = 0;
  for (size_t i = 0; i < whole; i += 64) {
    const __m512i symbols = load(plane + i);
    const uint64_t zeros = _mm512_cmpeq_epi8_mask(load(first + i), zero);
    store(out, _mm512_maskz_compress_epi8(~zeros, symbols));
    out += 64 - count_bits(zeros);
    const __m512i differences = _mm512_maskz_compress_epi8(zeros, _mm512_xor_si512(symbols, value));
    add_bits(e.signs, sign, _mm512_cmpeq_epi8_mask(differences, one), count_bits(zeros));
    others += count_bits(_mm512_cmpgt_epu8_mask(differences, one));
  }
  e.symbols = out;
  e.sign = sign;
  return others + kScalarSparseKernels.pack(e, first + whole, plane + whole, n - whole);
}

}  // namespace

const SparseKernels kAvx512Vbmi2SparseKernels = {.expand = expand, .pack = pack};

}  // namespace bf16codecs
