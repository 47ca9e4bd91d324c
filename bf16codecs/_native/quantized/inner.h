#pragma once

// Scales and offsets that lie on a grid themselves: NVFP4's, which are FP8, and those of GGUF's
// K-quants, which are integers times a number for each 256 items.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "quantized/find.h"

namespace bf16codecs::quantized {

// Of n numbers, little-endian binary32.
std::optional<Found> find_inner(const uint8_t* numbers, size_t n);

}  // namespace bf16codecs::quantized
