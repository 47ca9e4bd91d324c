// The kernel for plane 0 of many usual blocks of the codec Huffman.
//
// A block of threads is one warp, so that the address of its shared memory is a constant, which
// saves an instruction at each access. Each warp takes jobs until none is left.

#include "cuda/kernels.h"

using bf16codecs::cuda::HuffmanBlocksMemory;
using bf16codecs::cuda::Job;
using bf16codecs::cuda::Warp;

extern "C" __global__ void __launch_bounds__(32)
    bf16codecs_decode_huffman(const Job* jobs, uint32_t n, uint32_t* next, uint8_t* verdicts) {
  __shared__ alignas(16) uint8_t memory[sizeof(HuffmanBlocksMemory)];
  bf16codecs::cuda::decode_huffman(
      Warp(threadIdx.x), reinterpret_cast<HuffmanBlocksMemory&>(memory), jobs, n, next, verdicts);
}
