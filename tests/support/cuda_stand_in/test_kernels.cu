// Kernels that tests of the device layer launch, so that they depend on none of the package's.

#include <cstdint>

extern "C" __global__ void copy_bytes(const uint8_t* in, uint8_t* out, uint32_t n) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i];
}

extern "C" __global__ void count_warps(uint32_t* count) {
  if (threadIdx.x % 32 == 0) atomicAdd(count, 1u);
}
