#pragma once

// Items as numbers, and those of one group.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quantized/format.h"

namespace bf16codecs::quantized {

// Items of a layout that has grids, as binary32.
void load_values(const Layout& layout, const uint8_t* items, size_t n, float* values);

// The values of one group, counted in the block's bands: where they lie, or collected from the
// group's rows.
struct GroupValues {
  const float* values;
  size_t size;
  bool is_whole;  // the block has all of the group

  GroupValues(const Groups& groups, const Bands& bands, uint64_t first, const float* block,
              size_t n, size_t group, std::vector<float>& collected);
};

}  // namespace bf16codecs::quantized
