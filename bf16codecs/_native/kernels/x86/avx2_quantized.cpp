// The loops of grids, compiled for AVX2.

#include "kernels/quantized_loops.h"

namespace bf16codecs {

const QuantizedKernels kAvx2QuantizedKernels = BF16CODECS_QUANTIZED_KERNELS;

}  // namespace bf16codecs
