#pragma once

// The tiles mode's kernels for AVX2: the coder in avx2_tiles_coder.cpp, all else in avx2_tiles.cpp.

#include "kernels/x86/avx2.h"

namespace bf16codecs {

void avx2_tiles_decode(TileDecoder& decoder, const TileTable tables[], const uint8_t* classes,
                       size_t steps, uint8_t* symbols);
void avx2_tiles_encode(TileEncoder& encoder, const TileCodeTable tables[], const uint8_t* classes,
                       size_t steps, const uint8_t* symbols);
extern const TileKernels kAvx2TileKernels;

}  // namespace bf16codecs
