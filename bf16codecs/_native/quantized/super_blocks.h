#pragma once

// The super-blocks of GGUF's K-quants: 256 items whose 8 or 16 scales, and offsets, are integers
// times a number of binary16. Each group's items leave a range of scales; of these, the ones of
// such a super-block take half as many bits.

#include <cstddef>

#include "quantized/find.h"
#include "quantized/section.h"

namespace bf16codecs::quantized {

// Replaces the scales, offsets and codes of a block's groups, if they can be those of super-blocks.
void find_super_blocks(const Found& found, Precision precision, const Block& block, float* scales,
                       float* offsets, Codes& codes);

}  // namespace bf16codecs::quantized
