#pragma once

// A warp whose 32 threads go in lockstep. Code outside of the functions passed to each(), ballot()
// and shuffle() is the same for all threads, and so are its variables; values of single threads are
// in a PerThread. So the same source runs on a GPU, where a PerThread is a register, and on a CPU,
// where lockstep.h runs the threads one after the other.
//
// A thread may read another thread's writes to memory only after sync().

#include <cstddef>
#include <cstdint>

namespace bf16codecs::cuda {

// 16 bytes, which a thread reads or writes at a time; the 512 bytes of a warp are whole lines.
struct alignas(16) Quad {
  uint32_t word[4];
};
inline constexpr unsigned kQuadBytes = sizeof(Quad);

}  // namespace bf16codecs::cuda

#if defined(__CUDACC__)
#include "cuda/warp.cuh"
#else
#include "cuda/lockstep.h"
#endif

namespace bf16codecs::cuda {

inline constexpr unsigned kThreads = 32;  // of a warp

// A mask of the threads before thread t.
BF16CODECS_DEVICE uint32_t threads_before(unsigned t) {
  return (1u << t) - 1;
}

BF16CODECS_DEVICE const uint8_t* bytes_at(uint64_t address) {
  return reinterpret_cast<const uint8_t*>(address);
}

template <typename T>
BF16CODECS_DEVICE T least(T a, T b) {
  return a < b ? a : b;
}

template <typename T>
BF16CODECS_DEVICE T clamp(T value, T low, T high) {
  const T below = value < high ? value : high;
  return below > low ? below : low;
}

inline constexpr unsigned kStripBytes = kThreads * kQuadBytes;

}  // namespace bf16codecs::cuda
