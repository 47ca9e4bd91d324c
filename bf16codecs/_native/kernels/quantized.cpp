// The portable kernels of grids: the definition that the others are tested against.

#include "kernels/quantized_search.h"

namespace bf16codecs {

const QuantizedKernels kScalarQuantizedKernels = BF16CODECS_QUANTIZED_KERNELS(nullptr, nullptr);

}  // namespace bf16codecs
