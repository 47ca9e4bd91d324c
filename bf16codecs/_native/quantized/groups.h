#pragma once

// The search for a group's numbers, by the one that its kind needs.

#include <cstddef>
#include <variant>

#include "kernels/kernels.h"
#include "quantized/offsets.h"
#include "quantized/scales.h"

namespace bf16codecs::quantized {

class GroupFinder {
 public:
  // For `failures` see ScaleFinder.
  GroupFinder(const Kind& kind, Precision precision, size_t failures)
      : finder_(ScaleFinder(kind, precision, failures)) {
    if (kind.has_offsets()) finder_.emplace<OffsetFinder>(kind, precision, failures);
  }

  ScaleAndOffset find(const float* values, size_t n, bool is_whole) {
    if (auto* const scales = std::get_if<ScaleFinder>(&finder_))
      return {scales->find(values, n, is_whole), 0};
    return std::get<OffsetFinder>(finder_).find(values, n);
  }

 private:
  std::variant<ScaleFinder, OffsetFinder> finder_;
};

// Finds the codes of values, as the kernels do. Products need no offsets.
inline bool quantize_values(const Levels& levels, Precision precision, const float* values,
                            const float* scales, const float* offsets, size_t n,
                            const LevelCodes& codes) {
  const QuantizedKernels& kernel = *kernels().quantized;
  if (levels.formula == Formula::product)
    return kernel.quantize(levels, precision, values, scales, n, codes);
  return kernel.quantize_with_offsets(levels, precision, values, scales, offsets, n, codes);
}

}  // namespace bf16codecs::quantized
