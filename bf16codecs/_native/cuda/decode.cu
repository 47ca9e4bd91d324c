// The kernels, for NVRTC. A block of threads has kWarps warps, which have nothing to do with each
// other; each takes jobs until none is left.

#include "cuda/kernels.h"

namespace bf16codecs::cuda {

inline constexpr unsigned kWarps = 4;  // in a block of threads

}  // namespace bf16codecs::cuda

using bf16codecs::cuda::BlockMemory;
using bf16codecs::cuda::FusedMemory;
using bf16codecs::cuda::Job;
using bf16codecs::cuda::kWarps;
using bf16codecs::cuda::Warp;

extern "C" __global__ void __launch_bounds__(32 * kWarps)
    bf16codecs_decode_fused(const Job* jobs, uint32_t n, uint32_t* next, uint8_t* verdicts) {
  __shared__ alignas(16) uint8_t memory[kWarps][sizeof(FusedMemory)];
  const unsigned warp = threadIdx.x / 32;
  bf16codecs::cuda::decode_fused(Warp(threadIdx.x % 32),
                                 reinterpret_cast<FusedMemory&>(memory[warp]), jobs, n, next,
                                 verdicts);
}

extern "C" __global__ void __launch_bounds__(32 * kWarps)
    bf16codecs_decode_any(const Job* jobs, uint32_t n, uint32_t* next, uint8_t* verdicts,
                          uint8_t* scratch, uint64_t scratch_size) {
  __shared__ alignas(16) uint8_t memory[kWarps][sizeof(BlockMemory)];
  const unsigned warp = threadIdx.x / 32, all = blockIdx.x * kWarps + warp;
  bf16codecs::cuda::decode_any(Warp(threadIdx.x % 32), reinterpret_cast<BlockMemory&>(memory[warp]),
                               jobs, n, next, verdicts, scratch + all * scratch_size, scratch_size);
}
