// The kernel for the usual blocks of the codec Huffman, where there are many.
//
// A block of threads is a warp: where its memory is, is known then, which saves an instruction
// wherever it is used. It takes jobs until none is left.

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
