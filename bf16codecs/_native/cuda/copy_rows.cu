// The kernel that copies decoded rows to a target that is not contiguous.

#include "cuda/rows.h"

using bf16codecs::cuda::RowCopy;
using bf16codecs::cuda::Warp;

extern "C" __global__ void __launch_bounds__(32)
    bf16codecs_copy_rows(uint8_t* to, uint64_t to_pitch, const uint8_t* from, uint64_t from_pitch,
                         uint64_t size, uint64_t count) {
  bf16codecs::cuda::copy_rows(Warp(threadIdx.x), blockIdx.x, gridDim.x, to, from,
                              RowCopy{size, count, to_pitch, from_pitch});
}
