#pragma once

// The scales and offsets of a section's groups, one group after the other.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quantized/offsets.h"
#include "quantized/section.h"

namespace bf16codecs::quantized {

class LineSearch {
 public:
  LineSearch(const Kind& kind, Precision precision, size_t failures)
      : kind_(kind), precision_(precision), finder_(kind, precision, failures) {}

  // Finds the scales, offsets and codes of a section's groups; both numbers of those that have none
  // are 0.
  void find(Section& section, float* scales, float* offsets);

 private:
  void set_codes(Section& section, size_t group, const ScaleAndOffset& numbers);

  const Kind& kind_;
  Precision precision_;
  OffsetFinder finder_;
  std::vector<float> values_, scales_, offsets_;  // of a group
  std::vector<uint8_t> symbols_, low_;
  std::vector<uint32_t> codes_;
};

}  // namespace bf16codecs::quantized
