// The kernels of grids for AVX-512 with instructions for bfloat16.

#define BF16CODECS_AVX512_BF16
#include "kernels/x86/avx512_quantized.h"

namespace bf16codecs {

const QuantizedKernels kAvx512Bf16QuantizedKernels =
    BF16CODECS_QUANTIZED_KERNELS(least_run, multiply_runs);

}  // namespace bf16codecs
