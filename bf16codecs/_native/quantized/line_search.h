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
  LineSearch(const Kind& kind, Precision precision, size_t& failures)
      : kind_(kind), precision_(precision), finder_(kind, precision, failures) {}

  // Finds the scales, offsets and codes of a section's groups; both numbers of those that have none
  // are 0.
  void find(Section& section, float* scales, float* offsets);

 private:
  const Kind& kind_;
  Precision precision_;
  OffsetFinder finder_;
  std::vector<float> values_;  // of a group
  std::vector<uint32_t> codes_;
};

}  // namespace bf16codecs::quantized
