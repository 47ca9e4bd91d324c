#pragma once

// The coder of the scale model: rANS with 64-bit states and 32-bit words (docs/format_scale.md,
// "Payload of a block of n items"). Between steps a state is 2^31 <= x < 2^63. A symbol and its raw
// bits take at most 12 + 16 bits off it, which leaves at least 2^3: one word is enough to bring it
// back.

#include <cstdint>
#if defined(_MSC_VER) && !defined(__SIZEOF_INT128__)
#include <intrin.h>
#endif

#include "scale/tables.h"

namespace bf16codecs::scale {

inline constexpr uint64_t kStateMin = uint64_t{1} << 31;  // and below 2^63

// The upper 64 bits of the product.
inline uint64_t multiply_high(uint64_t a, uint64_t b) {
#if defined(__SIZEOF_INT128__)
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(a) * b) >> 64);
#elif defined(_MSC_VER) && (defined(_M_X64) || defined(_M_ARM64))
  return __umulh(a, b);
#else
  const uint64_t a0 = a & UINT32_MAX, a1 = a >> 32, b0 = b & UINT32_MAX, b1 = b >> 32;
  const uint64_t middle = a1 * b0 + ((a0 * b0) >> 32);
  const uint64_t cross = a0 * b1 + (middle & UINT32_MAX);
  return a1 * b1 + (middle >> 32) + (cross >> 32);
#endif
}

}  // namespace bf16codecs::scale
