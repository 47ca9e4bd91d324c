#pragma once

// A warp whose 32 threads go in lockstep. Code outside of a function that is given to each(),
// ballot() or shuffle() is the same for all of them, and so are its variables; what a thread has
// of its own is a PerThread. So the same source runs on a GPU, where a PerThread is a register,
// and on a processor, where lockstep.h goes through the threads one after the other.
//
// What one thread writes to memory, another reads after sync() only.

#include <cstddef>
#include <cstdint>

namespace bf16codecs::cuda {

// 16 bytes, which a thread reads and writes at a time: a warp has 512, which are whole lines.
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

// The threads before thread t, as bits.
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
  return value < low ? low : value > high ? high : value;
}

inline constexpr unsigned kStripBytes = kThreads * kQuadBytes;

}  // namespace bf16codecs::cuda
