#pragma once

// The codes of values whose scales are known.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quantized/scales.h"

namespace bf16codecs::quantized {

// Finds the codes of values; returns whether all have one. Products need no offsets.
bool quantize_values(const Levels& levels, Precision precision, const float* values,
                     const float* scales, const float* offsets, size_t n, const LevelCodes& codes);

// The codes of values that have a scale and an offset together: each symbol with its low bits
// below.
void find_codes(const Levels& levels, Precision precision, const std::vector<float>& values,
                const ScaleAndOffset& numbers, std::vector<uint32_t>& codes);

}  // namespace bf16codecs::quantized
