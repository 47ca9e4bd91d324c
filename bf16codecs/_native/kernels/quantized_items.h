#pragma once

// The arithmetic of the grid mode's items, for the loops of processors and the kernels of GPUs: one
// operation of IEEE 754 after the other. Each file that includes this has a copy of its own,
// compiled for its instruction set.

#include "kernels/compilers.h"
#include "kernels/formulas.h"

namespace bf16codecs {
namespace {

constexpr uint32_t kSign = 0x80000000, kInfinity = 0x7F800000;

BF16CODECS_INLINE uint32_t bits_of(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
BF16CODECS_INLINE float float_of(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
BF16CODECS_INLINE float magnitude_of(float x) {
  return float_of(bits_of(x) & ~kSign);
}

// Never fused with a sum that it goes into, as compilers for GPUs do otherwise.
BF16CODECS_INLINE float times(float a, float b) {
#if defined(__CUDACC__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

BF16CODECS_INLINE float to_bfloat16(float x) {
  const uint32_t bits = bits_of(x);
  return float_of((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000);
}

// Below 2^-14, binary16 is subnormal, and has multiples of 2^-24, as binary32 has from 0.5 on.
BF16CODECS_INLINE float to_binary16(float x) {
  constexpr float kLeastNormal = 1.0f / 16384, kLimit = 65536;
  const uint32_t bits = bits_of(x), sign = bits & kSign, magnitude = bits & ~kSign;
  const float small = (float_of(magnitude) + 0.5f) - 0.5f;
  const uint32_t normal = (magnitude + 0xFFF + (magnitude >> 13 & 1)) & 0xFFFFE000;
  const uint32_t finite = float_of(magnitude) < kLeastNormal ? bits_of(small) : normal;
  return float_of(sign | (float_of(finite) < kLimit ? finite : kInfinity));
}

template <Precision kPrecision>
BF16CODECS_INLINE float rounded(float x) {
  if constexpr (kPrecision == Precision::binary16) return to_binary16(x);
  if constexpr (kPrecision == Precision::bfloat16) return to_bfloat16(x);
  if constexpr (kPrecision == Precision::binary16_bfloat16) return to_bfloat16(to_binary16(x));
  if constexpr (kPrecision == Precision::bfloat16_binary16) return to_binary16(to_bfloat16(x));
  return x;
}

template <Formula kFormula, Precision kPrecision>
BF16CODECS_INLINE float with_offset(float level, float scale, float offset) {
  constexpr Precision kHalf = half(kPrecision);
  if constexpr (kFormula == Formula::difference)
    return rounded<kPrecision>(times(rounded<kHalf>(level - offset), scale));
  if constexpr (kFormula == Formula::rounded_sum)
    return rounded<kPrecision>(rounded<kHalf>(times(level, scale)) + offset);
  return rounded<kPrecision>(times(level, scale) + offset);
}

// Rounds nothing: the number is of binary16.
BF16CODECS_INLINE uint32_t store16(float value) {
  constexpr float kSubnormals = 1 << 24, kLeastNormal = 1.0f / 16384;
  const uint32_t bits = bits_of(value), magnitude = bits & ~kSign;
  const bool is_small = float_of(magnitude) < kLeastNormal, is_infinite = magnitude >= kInfinity;
  const float whole = is_small ? float_of(magnitude) * kSubnormals : 0;
  const auto small = static_cast<uint32_t>(static_cast<int>(whole));
  const uint32_t normal = is_infinite ? 0x7C00 : (magnitude >> 13) - (112u << 10);
  return (is_small ? small : normal) | (bits >> 16 & 0x8000);
}

// The bits of an item, of a number that its container has.
template <Container kContainer>
BF16CODECS_INLINE uint32_t item_of(float value) {
  if constexpr (kContainer == Container::float32) return bits_of(value);
  if constexpr (kContainer == Container::bfloat16) return bits_of(value) >> 16;
  return store16(value);
}

}  // namespace
}  // namespace bf16codecs
