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
  GroupFinder(const Kind& kind, Precision precision, size_t& failures)
      : finder_(ScaleFinder(kind, precision, failures)), failures_(failures) {
    if (kind.has_offsets()) finder_.emplace<OffsetFinder>(kind, precision, failures);
  }

  ScaleAndOffset find(const float* values, size_t n, bool is_whole) {
    if (auto* const scales = std::get_if<ScaleFinder>(&finder_))
      return {scales->find(values, n, is_whole), 0};
    auto& lines = std::get<OffsetFinder>(finder_);
    const ScaleAndOffset found = lines.find(values, n);
    // Samples that are slowly found count, too.
    if (found.scale != 0 && lines.took_long() && failures_ != 0) --failures_;
    return found;
  }

 private:
  std::variant<ScaleFinder, OffsetFinder> finder_;
  size_t& failures_;
};

}  // namespace bf16codecs::quantized
