#pragma once

// The Gaussian tables (docs/format_tiles.md, "Gaussian tables").

#include <array>
#include <cstdint>
#include <optional>

#include "tiles/tables.h"

namespace bf16codecs::tiles {

inline constexpr unsigned kGaussianFirst = 96, kGaussianEnd = 240;
inline constexpr int kMaxChange = 64;  // in eighths of an octave

using Changes = std::array<int8_t, kMaxIntervals>;

// Makes the intervals of table class c, one of `classes`, with changed frequencies; none if the
// changes leave nothing to the most frequent interval.
std::optional<Intervals> gaussian_intervals(unsigned classes, unsigned c, const Changes& changes,
                                            unsigned escape_frequency);

}  // namespace bf16codecs::tiles
