// The loops of grids, compiled for AVX-512.

#include "kernels/quantized_loops.h"

namespace bf16codecs {

const QuantizedKernels kAvx512QuantizedKernels = BF16CODECS_QUANTIZED_KERNELS;

}  // namespace bf16codecs
