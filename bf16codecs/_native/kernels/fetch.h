#pragma once

// Hints to fetch the cache line at an address into the first- or second-level cache. They take
// addresses as integers, because they may lie outside of any object, where a pointer must not
// point.

#include <cstddef>
#include <cstdint>

#if defined(_MSC_VER) && defined(_M_X64)
#include <xmmintrin.h>
#define BF16CODECS_FETCH(address, level) \
  _mm_prefetch(reinterpret_cast<const char*>(address), (level) == 1 ? _MM_HINT_T0 : _MM_HINT_T1)
#elif defined(__GNUC__)
#define BF16CODECS_FETCH(address, level) \
  __builtin_prefetch(reinterpret_cast<const void*>(address), 0, 4 - (level))
#else
#define BF16CODECS_FETCH(address, level) static_cast<void>(address)
#endif
#define BF16CODECS_FETCH_L1(address) BF16CODECS_FETCH(address, 1)
#define BF16CODECS_FETCH_L2(address) BF16CODECS_FETCH(address, 2)

namespace bf16codecs {

inline constexpr size_t kCacheLine = 64;

}  // namespace bf16codecs
