#pragma once

// The search for a group's numbers, by the one that its kind needs.

#include <cstddef>
#include <variant>

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

}  // namespace bf16codecs::quantized
