#pragma once

// Hints to have the cache line at an address in the first- or second-level cache. Any address is
// allowed, so they take numbers: a pointer must not leave its object.

#include <cstddef>
#include <cstdint>

#if defined(_MSC_VER) && defined(_M_X64)
#include <xmmintrin.h>
#define BF16CODECS_FETCH_L1(address) _mm_prefetch(reinterpret_cast<const char*>(address), _MM_HINT_T0)
#define BF16CODECS_FETCH_L2(address) _mm_prefetch(reinterpret_cast<const char*>(address), _MM_HINT_T1)
#elif defined(__GNUC__)
#define BF16CODECS_FETCH_L1(address) __builtin_prefetch(reinterpret_cast<const void*>(address), 0, 3)
#define BF16CODECS_FETCH_L2(address) __builtin_prefetch(reinterpret_cast<const void*>(address), 0, 2)
#else
#define BF16CODECS_FETCH_L1(address) static_cast<void>(address)
#define BF16CODECS_FETCH_L2(address) static_cast<void>(address)
#endif

namespace bf16codecs {

inline constexpr size_t kCacheLine = 64;

}  // namespace bf16codecs
