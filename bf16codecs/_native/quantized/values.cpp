#include "quantized/values.h"

#include <algorithm>

#include "kernels/kernels.h"

namespace bf16codecs::quantized {

void load_values(const Layout& layout, const uint8_t* items, size_t n, float* values) {
  kernels().quantized->load(container_of(layout), items, n, values);
}

GroupValues::GroupValues(const Groups& groups, const Bands& bands, uint64_t first,
                         const float* block, size_t n, size_t group,
                         std::vector<float>& collected) {
  const uint64_t row = groups.row, band = bands.first + group / bands.columns;
  const uint64_t column = group % bands.columns * groups.width;
  const uint64_t width = std::min<uint64_t>(groups.width, row - column);
  // The group's rows, of which the block may have only some, and of those only a part.
  const uint64_t first_row = std::max(band * groups.height, first / row);
  const uint64_t end_row = std::min((band + 1) * groups.height, (first + n - 1) / row + 1);
  is_whole = band * groups.height * row >= first && groups.height != kAllItems &&
             groups.width != kAllItems && (band + 1) * groups.height * row <= first + n;
  collected.clear();
  values = block;
  size = 0;
  for (uint64_t r = first_row; r < end_row; ++r) {
    const uint64_t begin = std::max(r * row + column, first);
    const uint64_t end = std::min(r * row + column + width, first + n);
    if (begin >= end) continue;
    const float* const from = block + (begin - first);
    const auto length = static_cast<size_t>(end - begin);
    if (size == 0 && r + 1 >= end_row) {  // all there is
      values = from;
      size = length;
      return;
    }
    collected.insert(collected.end(), from, from + length);
    size = collected.size();
  }
  values = collected.data();
}

}  // namespace bf16codecs::quantized
