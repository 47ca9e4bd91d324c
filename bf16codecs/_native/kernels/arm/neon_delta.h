#pragma once

// The difference mode's kernels for NEON: the coder in neon_delta_coder.cpp, all else in
// neon_delta.cpp.

#include "kernels/arm/neon.h"

namespace bf16codecs {

void neon_delta_decode(DeltaDecoder& decoder, const DeltaTables& tables, const uint8_t* classes,
                       size_t steps, uint16_t* numbers, uint32_t* escapes);
void neon_delta_encode(DeltaEncoder& encoder, const DeltaTables& tables, const uint8_t* classes,
                       const uint16_t* numbers, size_t steps, uint32_t* escapes);
extern const DeltaKernels kNeonDeltaKernels;

}  // namespace bf16codecs
