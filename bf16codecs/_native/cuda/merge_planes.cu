// The kernel that merges planes which other kernels have decoded, or which are stored.
//
// A block of threads is one warp, so that the address of its shared memory is a constant, which
// saves an instruction at each access. Each warp takes jobs until none is left.

#include "cuda/kernels.h"

using bf16codecs::cuda::Job;
using bf16codecs::cuda::MergeMemory;
using bf16codecs::cuda::Warp;

extern "C" __global__ void __launch_bounds__(32, 32)
    bf16codecs_merge_planes(const Job* jobs, uint32_t n, uint32_t* next, uint8_t* verdicts) {
  __shared__ alignas(16) uint8_t memory[sizeof(MergeMemory)];
  bf16codecs::cuda::merge_planes(Warp(threadIdx.x), reinterpret_cast<MergeMemory&>(memory), jobs, n,
                                 next, verdicts);
}
