// The kernel that makes items of grids, whose symbols other kernels have decoded, or which need not
// be.
//
// A block of threads is one warp, so that the address of its shared memory is a constant, which
// saves an instruction at each access. Each warp takes jobs until none is left.

#include "cuda/kernels.h"

using bf16codecs::cuda::Job;
using bf16codecs::cuda::LevelsMemory;
using bf16codecs::cuda::Warp;

extern "C" __global__ void __launch_bounds__(32, 20)
    bf16codecs_multiply_levels(const Job* jobs, uint32_t n, uint32_t* next, uint8_t* verdicts) {
  __shared__ alignas(16) uint8_t memory[sizeof(LevelsMemory)];
  bf16codecs::cuda::multiply_levels(Warp(threadIdx.x), reinterpret_cast<LevelsMemory&>(memory),
                                    jobs, n, next, verdicts);
}
