#pragma once

// The scales and offsets of a section's groups: of all at once, and of those that are left, of one
// group after the other.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quantized/lines_together.h"
#include "quantized/offsets.h"
#include "quantized/section.h"

namespace bf16codecs::quantized {

class LineSearch {
 public:
  LineSearch(const Found& found, Precision precision, const Block& block, size_t& failures)
      : kind_(found.kind),
        precision_(precision),
        together_(found, precision, block),
        finder_(found.kind, precision, failures) {}

  // Finds the scales, offsets and codes of a section's groups; both numbers of those that have none
  // are 0.
  void find(Section& section, float* scales, float* offsets);

  // See LinesTogether.
  const std::vector<bool>& super_blocks() const { return together_.super_blocks(); }

 private:
  const Kind& kind_;
  Precision precision_;
  LinesTogether together_;
  OffsetFinder finder_;
  std::vector<float> values_;  // of a group
  std::vector<uint32_t> codes_;
};

}  // namespace bf16codecs::quantized
