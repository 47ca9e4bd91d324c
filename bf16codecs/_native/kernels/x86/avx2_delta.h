#pragma once

// The difference mode's kernels for AVX2: the coder in avx2_delta_coder.cpp, all else in
// avx2_delta.cpp.

#include "kernels/x86/avx2.h"

namespace bf16codecs {

void avx2_delta_decode(DeltaDecoder& decoder, const DeltaTables& tables, const uint8_t* classes,
                       size_t steps, uint16_t* numbers, uint32_t* escapes);
void avx2_delta_encode(DeltaEncoder& encoder, const DeltaTables& tables, const uint8_t* classes,
                       const uint16_t* numbers, size_t steps, uint32_t* escapes);
extern const DeltaKernels kAvx2DeltaKernels;

}  // namespace bf16codecs
