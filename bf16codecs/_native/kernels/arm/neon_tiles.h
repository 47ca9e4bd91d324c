#pragma once

// The tiles mode's kernels for NEON: the coder in neon_tiles_coder.cpp, all else in neon_tiles.cpp.

#include "kernels/arm/neon.h"

namespace bf16codecs {

void neon_tiles_decode(TileDecoder& decoder, const TileTable tables[], const uint8_t* classes,
                       size_t steps, uint8_t* symbols);
void neon_tiles_encode(TileEncoder& encoder, const TileCodeTable tables[], const uint8_t* classes,
                       size_t steps, const uint8_t* symbols);
extern const TileKernels kNeonTileKernels;

}  // namespace bf16codecs
