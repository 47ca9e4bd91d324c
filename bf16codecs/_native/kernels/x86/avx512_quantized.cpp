// The kernels of grids for AVX-512.

#include "kernels/x86/avx512_quantized.h"

namespace bf16codecs {

const QuantizedKernels kAvx512QuantizedKernels =
    BF16CODECS_QUANTIZED_KERNELS(least_run, multiply_runs);

}  // namespace bf16codecs
