#pragma once

// Bits of a vector kernel's mask. Each file that includes this has a copy of its own, built for its
// instruction set. For x86-64 these are intrinsics: an inline function of the standard library
// would be compiled here with instructions that the rest of the program must not use, and the
// linker might keep this copy for the whole program.
//
// last_bit() needs v != 0.

#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#else
#include <bit>
#endif

#include "kernels/kernels.h"

namespace bf16codecs {
namespace {

#if defined(__x86_64__) || defined(_M_X64)
BF16CODECS_INLINE unsigned first_bit(uint64_t v) {
  return static_cast<unsigned>(_tzcnt_u64(v));
}
BF16CODECS_INLINE unsigned last_bit(uint64_t v) {
  return 63 - static_cast<unsigned>(_lzcnt_u64(v));
}
BF16CODECS_INLINE unsigned count_bits(uint64_t v) {
  return static_cast<unsigned>(_mm_popcnt_u64(v));
}
#else
BF16CODECS_INLINE unsigned first_bit(uint64_t v) {
  return static_cast<unsigned>(std::countr_zero(v));
}
BF16CODECS_INLINE unsigned last_bit(uint64_t v) {
  return 63 - static_cast<unsigned>(std::countl_zero(v));
}
BF16CODECS_INLINE unsigned count_bits(uint64_t v) {
  return static_cast<unsigned>(std::popcount(v));
}
#endif

}  // namespace
}  // namespace bf16codecs
