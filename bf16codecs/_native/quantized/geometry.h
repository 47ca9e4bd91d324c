#pragma once

// The groups that libraries quantise in.

#include <optional>
#include <vector>

#include "quantized/array.h"

namespace bf16codecs::quantized {

// Groups to try, the largest first, but for the usual tiles.
std::vector<Groups> possible_groups(const Array& array, bool along_rows, bool along_columns);

// Groups of other lengths that divide rows or columns, the largest first. If all groups of a shape
// have a scale, those of several times its length.
std::vector<Groups> odd_groups(const Array& array, bool along_rows, bool along_columns,
                               const Groups* found);

// Smaller groups, for a block in which these have no scale, if there are any.
std::optional<Groups> smaller_groups(const Groups& groups);

}  // namespace bf16codecs::quantized
