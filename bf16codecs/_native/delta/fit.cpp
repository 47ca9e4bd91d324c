#include "delta/fit.h"

#include <algorithm>
#include <cstring>

#include "grid/item_scales.h"
#include "grid/keys.h"

namespace bf16codecs::delta {
namespace {

// Items that show scale and classes.
constexpr size_t kShapeItems = size_t{1} << 11;

// Items that show how often the entries occur: a part of the section, within limits. The tables of
// a tensor of 64 K items have about 90 entries: with 4 K items they cost 0.016 bits more than with
// all.
size_t counted_items(size_t n, bool is_best) {
  if (is_best) return std::clamp(n / 2, size_t{1} << 14, size_t{1} << 17);
  return std::clamp(n / 32, size_t{1} << 12, size_t{1} << 15);
}

// Takes windows from all over the n items at `base` and `items`, a section that begins at `first`.
Sample take_sample(const Layout& layout, const uint8_t* base, const uint8_t* items, size_t n,
                   size_t wanted) {
  constexpr size_t kWindow = 128;
  const size_t width = layout.planes();
  const size_t windows = n <= wanted ? 1 : wanted / kWindow;
  const size_t window = n <= wanted ? n : kWindow;
  Sample sample;
  sample.base.resize(width * window * windows);
  sample.items.resize(sample.base.size());
  sample.scales.resize(window * windows);
  for (size_t w = 0; w < windows; ++w) {
    // Neighbours begin in other columns, whatever the length of a row.
    const size_t at = n / windows * w;
    std::memcpy(sample.base.data() + width * window * w, base + width * at, width * window);
    std::memcpy(sample.items.data() + width * window * w, items + width * at, width * window);
  }
  return sample;
}

}  // namespace

Model Model::fit(const Layout& layout, const uint8_t* base, const uint8_t* items, size_t n,
                 size_t row, bool with_grid) {
  static_cast<void>(row);
  constexpr unsigned kFastClasses = 8;
  Model model;
  model.layout_ = layout;
  const size_t width = layout.planes();
  for (size_t first = 0; first < n; first += grid::kSectionItems) {
    const size_t count = std::min(grid::kSectionItems, n - first);
    Section& section = model.sections_.emplace_back();
    section.shape.fraction = fraction_bits(layout.dtype);
    const uint8_t *const from = base + width * first, *const to = items + width * first;
    Sample sample = take_sample(layout, from, to, count, kShapeItems);
    fit_scale(layout, sample, false, section);
    fit_classes(layout, sample, with_grid ? kDeltaClasses : kFastClasses, section);
    fit_raw_bits(layout, sample, section);
    sample = take_sample(layout, from, to, count, counted_items(count, with_grid));
    std::fill(sample.scales.begin(), sample.scales.end(), section.base);
    fit_weights(layout, sample, section);
    model.tables_.emplace_back(section.classes, false);
  }
  return model;
}

grid::RowScales Model::fit_rows(const uint8_t* base, const uint8_t* items, uint64_t first,
                                size_t n) const {
  static_cast<void>(base), static_cast<void>(items);
  const Section& of = section(first);
  return {0, std::vector<int16_t>(grid::rows_in(of, first, n))};
}

}  // namespace bf16codecs::delta
