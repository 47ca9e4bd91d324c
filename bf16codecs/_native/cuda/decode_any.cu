// The kernel for blocks of all kinds.
//
// A block of threads is a warp: where its memory is, is known then, which saves an instruction
// wherever it is used. It takes jobs until none is left.

#include "cuda/kernels.h"

using bf16codecs::cuda::BlockMemory;
using bf16codecs::cuda::Job;
using bf16codecs::cuda::Warp;

// Told that so many of them are enough for a multiprocessor, the compiler has registers for all.
// From 10.0 on, it would otherwise have threads wait for each other as well.
#if __CUDA_ARCH__ == 900
constexpr unsigned kWarps = 20;
#elif __CUDA_ARCH__ >= 1000
constexpr unsigned kWarps = 12;
#else
constexpr unsigned kWarps = 16;
#endif

extern "C" __global__ void __launch_bounds__(32, kWarps)
    bf16codecs_decode_any(const Job* jobs, uint32_t n, uint32_t* next, uint8_t* verdicts,
                          uint8_t* scratch, uint64_t scratch_size) {
  __shared__ alignas(16) uint8_t memory[sizeof(BlockMemory)];
  bf16codecs::cuda::decode_any(Warp(threadIdx.x), reinterpret_cast<BlockMemory&>(memory), jobs, n,
                               next, verdicts, scratch + blockIdx.x * scratch_size, scratch_size);
}
