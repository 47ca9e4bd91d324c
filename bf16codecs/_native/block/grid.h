#pragma once

// Blocks in the grid mode (docs/format_grids.md): their scales, offsets and plain items are blocks
// themselves, and their symbols a plane.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "block/block.h"
#include "quantized/decode.h"
#include "quantized/format.h"

namespace bf16codecs {

class Output;

// Scales and offsets are blocks of binary32.
inline constexpr Layout kNumberLayout{DType::float32, false};

// A block decoded up to its symbols.
struct GridBlock {
  quantized::Payload payload;
  quantized::Scales scales;
  std::vector<uint8_t> plain;  // the plain items
  PlaneView symbols;           // of the other items
};

// Reads a block of n items whose plane 0 is `view`. Its scales are in the workspace until the next
// block. Throws CorruptDataError.
GridBlock read_grid(const Layout& layout, const BlockContext& context, const PlaneView& view,
                    size_t n, const Zstd* zstd);

// Decodes such a block.
void decode_grid(const Layout& layout, const BlockContext& context, const PlaneView& view, size_t n,
                 const Zstd* zstd, Output& out);

// Encodes n items, likely to lie on the context's grid, as levels times scales; returns 0 if they
// are not, or if that takes more than `capacity`.
size_t encode_grid(const EncodeOptions& options, const BlockContext& context, const uint8_t* items,
                   size_t n, uint8_t* out, size_t capacity);

}  // namespace bf16codecs
