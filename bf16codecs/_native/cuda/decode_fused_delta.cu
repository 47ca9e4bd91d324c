// The kernel for usual blocks of differences.
//
// A block of threads is one warp, so that the address of its shared memory is a constant, which
// saves an instruction at each access. Each warp takes jobs until none is left.

#include "cuda/kernels.h"

using bf16codecs::cuda::FusedDeltaMemory;
using bf16codecs::cuda::Job;
using bf16codecs::cuda::Warp;

// This limit of warps on a multiprocessor gives the compiler registers for all variables. 20 and 28
// were as fast on an H200.
constexpr unsigned kWarps = 16;

extern "C" __global__ void __launch_bounds__(32, kWarps)
    bf16codecs_decode_fused_delta(const Job* jobs, uint32_t n, uint32_t* next, uint8_t* verdicts) {
  __shared__ alignas(16) uint8_t memory[sizeof(FusedDeltaMemory)];
  bf16codecs::cuda::decode_fused_delta(
      Warp(threadIdx.x), reinterpret_cast<FusedDeltaMemory&>(memory), jobs, n, next, verdicts);
}
