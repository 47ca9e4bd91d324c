#pragma once

// What compilers have different words for.

#if defined(__CUDACC__)
#define BF16CODECS_INLINE __forceinline__
#elif defined(_MSC_VER)
#define BF16CODECS_INLINE __forceinline
#define BF16CODECS_COLD __declspec(noinline)
#define BF16CODECS_UNROLL
#define BF16CODECS_UNROLL16
#else
#define BF16CODECS_INLINE inline __attribute__((always_inline))
#define BF16CODECS_COLD __attribute__((noinline, cold))
#define BF16CODECS_UNROLL _Pragma("GCC unroll 8")
#define BF16CODECS_UNROLL16 _Pragma("GCC unroll 16")
#endif
