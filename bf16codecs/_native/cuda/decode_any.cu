// The kernel for all kinds of blocks; it leaves some of their planes to merge_planes.cu.
//
// A block of threads is one warp, so that the address of its shared memory is a constant, which
// saves an instruction at each access. Each warp takes jobs until none is left.

#include "cuda/kernels.h"

using bf16codecs::cuda::BlockMemory;
using bf16codecs::cuda::Job;
using bf16codecs::cuda::Warp;

// This limit of warps on a multiprocessor gives the compiler registers for all variables. From
// compute capability 10.0 on, it would otherwise add synchronization of threads as well.
#if __CUDA_ARCH__ >= 1000
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
