// The kernel for usual blocks, which compiles ten times as fast as the kernel for all.
//
// A block of threads is one warp, so that the address of its shared memory is a constant, which
// saves an instruction at each access. Each warp takes jobs until none is left.

#include "cuda/kernels.h"

using bf16codecs::cuda::FusedMemory;
using bf16codecs::cuda::Job;
using bf16codecs::cuda::Warp;

// 28 warps use all registers of a multiprocessor. With 32, the compiler has too few registers on
// some GPUs; with fewer, it allocates more than it needs.
constexpr unsigned kWarps = 28;

extern "C" __global__ void __launch_bounds__(32, kWarps)
    bf16codecs_decode_fused(const Job* jobs, uint32_t n, uint32_t* next, uint8_t* verdicts) {
  __shared__ alignas(16) uint8_t memory[sizeof(FusedMemory)];
  bf16codecs::cuda::decode_fused(Warp(threadIdx.x), reinterpret_cast<FusedMemory&>(memory), jobs, n,
                                 next, verdicts);
}
