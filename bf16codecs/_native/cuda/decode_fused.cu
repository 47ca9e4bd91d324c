// The kernel for usual blocks, which compiles ten times as fast as that for all.
//
// A block of threads is a warp: where its memory is, is known then, which saves an instruction
// wherever it is used. It takes jobs until none is left.

#include "cuda/kernels.h"

using bf16codecs::cuda::FusedMemory;
using bf16codecs::cuda::Job;
using bf16codecs::cuda::Warp;

// Of a multiprocessor's registers, 28 of them take all: for 32, the compiler would have too few on
// some GPUs, and for less, it would take more than it has a use for.
constexpr unsigned kWarps = 28;

extern "C" __global__ void __launch_bounds__(32, kWarps)
    bf16codecs_decode_fused(const Job* jobs, uint32_t n, uint32_t* next, uint8_t* verdicts) {
  __shared__ alignas(16) uint8_t memory[sizeof(FusedMemory)];
  bf16codecs::cuda::decode_fused(Warp(threadIdx.x), reinterpret_cast<FusedMemory&>(memory), jobs, n,
                                 next, verdicts);
}
