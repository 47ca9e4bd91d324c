#pragma once

// The parts of a block in the difference mode (docs/format_differences.md, "Payload of a block").

#include <algorithm>
#include <cstddef>

#include "kernels/delta.h"

namespace bf16codecs::delta {

// Items that all passes handle before the next ones, while they are in the first-level cache. A
// strip has whole steps of any number of groups.
inline constexpr size_t kStrip = 4096;
inline constexpr size_t kStripSteps = kStrip / kDeltaStep;

// The sizes of a payload's parts, which follow from the numbers of items and groups.
struct Counts {
  size_t lanes, coded, rest, steps;

  Counts(size_t n, unsigned groups)
      : lanes(kLanesPerGroup * groups),
        coded(n - n % lanes),
        rest(n - coded),
        steps(coded / kDeltaStep) {}
};

}  // namespace bf16codecs::delta
