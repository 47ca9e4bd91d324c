#include "quantized/codes.h"

#include <algorithm>

#include "kernels/kernels.h"

namespace bf16codecs::quantized {

bool quantize_values(const Levels& levels, Precision precision, const float* values,
                     const float* scales, const float* offsets, size_t n, const LevelCodes& codes) {
  const QuantizedKernels& kernel = *kernels().quantized;
  if (levels.formula == Formula::product)
    return kernel.quantize(levels, precision, values, scales, n, codes);
  return kernel.quantize_with_offsets(levels, precision, values, scales, offsets, n, codes);
}

void find_codes(const Levels& levels, Precision precision, const std::vector<float>& values,
                const ScaleAndOffset& numbers, std::vector<uint32_t>& codes) {
  constexpr size_t kStrip = 256;
  const size_t n = values.size(), most = std::min(n, kStrip);
  float scales[kStrip], offsets[kStrip];
  std::fill_n(scales, most, numbers.scale);
  std::fill_n(offsets, most, numbers.offset);
  codes.resize(n);
  for (size_t i = 0; i < n; i += kStrip) {
    uint8_t symbols[kStrip], low[kStrip];
    const size_t strip = std::min(kStrip, n - i);
    quantize_values(levels, precision, values.data() + i, scales, offsets, strip, {symbols, low});
    for (size_t k = 0; k < strip; ++k)
      codes[i + k] = static_cast<uint32_t>(symbols[k] << levels.low_bits | low[k]);
  }
}

}  // namespace bf16codecs::quantized
