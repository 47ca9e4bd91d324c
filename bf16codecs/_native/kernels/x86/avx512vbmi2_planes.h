#pragma once

// What the coders for VBMI2 share: the states of a group as planes. Each file that includes this
// has a copy of its own, built for its instruction set.

#include "kernels/x86/avx512.h"

namespace bf16codecs {
namespace {

// The states of a group's 32 lanes: their low and their high words, in the order of the lanes.
struct Planes {
  __m512i low, high;
};

// States from memory to planes: the low and the high words of all 32 lanes are narrowed to a
// register each.
inline Planes load_planes(const uint32_t x[32]) {
  const __m512i even = load(x), odd = load(x + 16);
  const auto half = [](__m512i v) { return _mm512_cvtepi32_epi16(v); };
  const auto join = [](__m256i a, __m256i b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
  };
  return {join(half(even), half(odd)),
          join(half(_mm512_srli_epi32(even, 16)), half(_mm512_srli_epi32(odd, 16)))};
}

inline void store_planes(uint32_t x[32], const Planes& planes) {
  const auto join = [](__m256i low, __m256i high) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(low),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
  };
  store(x, join(_mm512_castsi512_si256(planes.low), _mm512_castsi512_si256(planes.high)));
  store(x + 16,
        join(_mm512_extracti64x4_epi64(planes.low, 1), _mm512_extracti64x4_epi64(planes.high, 1)));
}

// Loads 64 bytes that are about to be expanded. The empty statement keeps the compiler from making
// the load an operand of the expansion, which would wait for the mask before it loads.
BF16CODECS_INLINE __m512i load_early(const uint8_t* words) {
  __m512i v = load(words);
#if defined(__GNUC__)
  __asm__("" : "+v"(v));
#endif
  return v;
}

}  // namespace
}  // namespace bf16codecs
