// Fitting a difference model: scale or grid, classes and weights of each section, from samples.

#include "delta/fit.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "grid/fixed_point.h"
#include "grid/item_scales.h"
#include "grid/keys.h"
#include "tiles/fit.h"

namespace bf16codecs::delta {
namespace {

// The size of samples by which scale and classes are chosen.
constexpr size_t kShapeItems = size_t{1} << 10, kBestShapeItems = size_t{1} << 13;

// The size of samples by which weights are chosen: a part of the section, within limits. The tables
// of a tensor of 64 K items have about 90 entries; counted in 4 K items, they cost 0.016 bits more
// than counted in all.
size_t counted_items(size_t n) {
  return std::clamp(n / 32, size_t{1} << 12, size_t{1} << 15);
}

// The same at level `best`: compared_items() to compare one scale with a grid, kBestCounted for the
// weights of what was chosen. From a fourth of the items these cost 0.004 bits more than from all,
// from half of them 0.0015.
size_t compared_items(size_t n) {
  return std::clamp(n / 8, size_t{1} << 13, size_t{1} << 15);
}
constexpr size_t kBestCounted = size_t{1} << 17;

// A section of at most this many items may be one block: then its rows are estimated once.
constexpr size_t kOneBlock = size_t{1} << 18;

grid::RowScales find_rows(const grid::KeyFormat& format, const grid::Grid& grid,
                          const tiles::Items& differences, uint64_t first, size_t n) {
  const int exponent = grid.base / static_cast<int>(grid::kScaleSteps);
  return tiles::RowFit(format, grid, exponent).fit(differences, first, n).scales;
}

// Fits a section of a version.
class SectionFit {
 public:
  SectionFit(const Layout& layout, const uint8_t* base, const uint8_t* items, uint64_t first,
             size_t n)
      : layout_(layout), base_(base), items_(items), first_(first), n_(n) {}

  Section fast() const {
    constexpr unsigned kClasses = 8;
    return fit(blank(), nullptr, kShapeItems, counted_items(n_), {4, kClasses}).section;
  }

  // Fits it with a grid as well, if that saves more than it takes; `rows` become the row scales of
  // the whole section.
  Section best(size_t row, const grid::Grid* before, grid::RowScales& rows) const {
    const size_t compared = compared_items(n_);
    constexpr Resolution kOctaves{4, kDeltaClasses}, kHalves{3, kDeltaClasses};
    Fitted one = fit(blank(), nullptr, kBestShapeItems, compared, kOctaves);
    if (!grid::has_difference_keys(layout_) || one.section.relation != Relation::ordered) {
      return counted(std::move(one.section), {});
    }
    Section with_grid = blank();
    const grid::KeyFormat format(layout_);
    const tiles::Items differences(layout_, items_, first_, base_);
    if (row < grid::kMinRow) row = tiles::find_row(differences, n_);
    static_cast<grid::Grid&>(with_grid) =
        tiles::fit_grid(format, differences, first_, n_, row, before).grid;
    rows = find_rows(format, with_grid, differences, first_, n_);
    Fitted other = fit(with_grid, &rows, kBestShapeItems, compared, kHalves);
    const bool pays = bits(other, grid::write_rows(rows).size()) < bits(one, 0);
    if (!pays) rows = {};
    return counted(std::move(pays ? other : one).section, rows);
  }

 private:
  struct Resolution {
    unsigned shift, classes;
  };
  struct Fitted {
    Section section;
    uint64_t bits = 0;  // of the items that were counted
    size_t counted = 0;
  };

  // The approximate number of bits of all items and of the scales.
  uint64_t bits(const Fitted& fitted, size_t rows_size) const {
    constexpr uint64_t kColumn = 3;
    return fitted.bits * n_ / std::max<size_t>(1, fitted.counted) + 8 * rows_size +
           kColumn * fitted.section.period;
  }

  Section blank() const {
    Section section;
    section.shape.fraction = fraction_bits(layout_);
    return section;
  }

  // Chooses the section's weights again, by all items or many of them.
  Section counted(Section section, const grid::RowScales& rows) const {
    const grid::ItemScales scales(grid::KeyFormat(layout_), section, rows, first_);
    fit_weights(layout_, base_, items_, n_, n_ / kBestCounted + 1, scales, section);
    return section;
  }

  Fitted fit(Section section, const grid::RowScales* rows, size_t shape_items, size_t items,
             Resolution resolution) const {
    Sample sample = take_sample(section, rows, shape_items);
    fit_scale(layout_, sample, rows != nullptr, section);
    section.shape.shift = resolution.shift;
    fit_classes(layout_, sample, resolution.classes, section);
    fit_raw_bits(layout_, sample, section);
    if (items != shape_items) {
      sample = take_sample(section, rows, items);
      if (rows == nullptr) std::fill(sample.scales.begin(), sample.scales.end(), section.base);
    }
    const uint64_t bits = fit_weights(layout_, sample, section);
    return {std::move(section), bits, sample.size()};
  }

  // Takes windows from all over the section.
  Sample take_sample(const Section& section, const grid::RowScales* rows, size_t wanted) const {
    constexpr size_t kWindow = 128;
    const size_t width = layout_.planes();
    const size_t windows = n_ <= wanted ? 1 : wanted / kWindow;
    const size_t window = n_ <= wanted ? n_ : kWindow;
    Sample sample;
    sample.base.resize(width * window * windows);
    sample.items.resize(sample.base.size());
    sample.scales.resize(window * windows);
    std::optional<grid::ItemScales> scales;
    if (rows != nullptr) scales.emplace(grid::KeyFormat(layout_), section, *rows, first_);
    for (size_t w = 0; w < windows; ++w) {
      const size_t at = n_ / windows * w;
      std::memcpy(sample.base.data() + width * window * w, base_ + width * at, width * window);
      std::memcpy(sample.items.data() + width * window * w, items_ + width * at, width * window);
      if (scales) scales->fill(at, window, sample.scales.data() + window * w);
    }
    return sample;
  }

  const Layout& layout_;
  const uint8_t *base_, *items_;
  const uint64_t first_;
  const size_t n_;
};

}  // namespace

Model Model::fit(const Layout& layout, const uint8_t* base, const uint8_t* items, size_t n,
                 size_t row, bool is_best) {
  Model model;
  model.layout_ = layout;
  model.fitted_items_ = n;
  const size_t width = layout.planes();
  model.sections_.reserve(n / grid::kSectionItems + 1);
  for (size_t first = 0; first < n; first += grid::kSectionItems) {
    const size_t count = std::min(grid::kSectionItems, n - first);
    const SectionFit fit(layout, base + width * first, items + width * first, first, count);
    const grid::Grid* const before = first != 0 ? &model.sections_.back() : nullptr;
    grid::RowScales& rows = model.fitted_rows_.emplace_back();
    model.sections_.push_back(is_best ? fit.best(row, before, rows) : fit.fast());
    model.tables_.emplace_back(model.sections_.back().classes);
  }
  return model;
}

grid::RowScales Model::fit_rows(const uint8_t* base, const uint8_t* items, uint64_t first,
                                size_t n) const {
  const Section& of = section(first);
  if (of.has_one_scale()) return {};
  const grid::RowScales& fitted = fitted_rows_[section_index(first)];
  const bool is_whole = first % grid::kSectionItems == 0 && n == fitted_items_ - first;
  if (is_whole && n <= kOneBlock) return fitted;
  return find_rows(grid::KeyFormat(layout_), of, tiles::Items(layout_, items, first, base), first,
                   n);
}

}  // namespace bf16codecs::delta
