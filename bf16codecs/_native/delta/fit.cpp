#include "delta/fit.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "delta/fit_grid.h"
#include "grid/fixed_point.h"
#include "grid/item_scales.h"
#include "grid/keys.h"

namespace bf16codecs::delta {
namespace {

// Items that show scale and classes.
constexpr size_t kShapeItems = size_t{1} << 10;

// Items that show how often the entries occur: a part of the section, within limits. The tables of
// a tensor of 64 K items have about 90 entries: with 4 K items they cost 0.016 bits more than with
// all.
size_t counted_items(size_t n, bool is_best) {
  if (is_best) return std::clamp(n / 2, size_t{1} << 14, size_t{1} << 17);
  return std::clamp(n / 32, size_t{1} << 12, size_t{1} << 15);
}

// A section of a version that is fitted.
class SectionFit {
 public:
  SectionFit(const Layout& layout, const uint8_t* base, const uint8_t* items, uint64_t first,
             size_t n)
      : layout_(layout), base_(base), items_(items), first_(first), n_(n) {}

  Section fast() const {
    constexpr unsigned kClasses = 8;
    return fit(blank(), nullptr, kShapeItems, counted_items(n_, false), {4, kClasses}).section;
  }

  // The same with scales of rows and columns, where they are worth more than they take.
  Section best(size_t row, const grid::Grid* before) const {
    const size_t counted = counted_items(n_, true);
    Fitted one = fit(blank(), nullptr, counted, counted, {4, kDeltaClasses});
    if (!has_grid(layout_) || one.section.relation != Relation::ordered) return one.section;
    Section with_grid = blank();
    static_cast<grid::Grid&>(with_grid) = fit_grid(layout_, base_, items_, first_, n_, row, before);
    const grid::RowScales rows = fit_rows(layout_, with_grid, base_, items_, first_, n_);
    const Fitted other = fit(with_grid, &rows, counted, counted, {3, kDeltaClasses});
    const bool pays = bits(other, grid::write_rows(rows).size()) < bits(one, 0);
    return pays ? other.section : one.section;
  }

 private:
  struct Resolution {
    unsigned step, classes;
  };
  struct Fitted {
    Section section;
    Sample sample;
  };

  // Nearly the bits of all items, and of what scales take.
  uint64_t bits(const Fitted& fitted, size_t rows_size) const {
    constexpr uint64_t kColumn = 3;
    const uint64_t sampled = coded_bits(layout_, fitted.sample, fitted.section);
    const size_t items = std::max<size_t>(1, fitted.sample.size());
    return sampled * n_ / items + 8 * rows_size + kColumn * fitted.section.period;
  }

  Section blank() const {
    Section section;
    section.shape.fraction = fraction_bits(layout_.dtype);
    return section;
  }

  Fitted fit(Section section, const grid::RowScales* rows, size_t shape_items, size_t items,
             Resolution resolution) const {
    Sample sample = take_sample(section, rows, shape_items);
    fit_scale(layout_, sample, rows != nullptr, section);
    section.shape.step = resolution.step;
    fit_classes(layout_, sample, resolution.classes, section);
    fit_raw_bits(layout_, sample, section);
    if (items != shape_items) {
      sample = take_sample(section, rows, items);
      if (rows == nullptr) std::fill(sample.scales.begin(), sample.scales.end(), section.base);
    }
    fit_weights(layout_, sample, section);
    return {std::move(section), std::move(sample)};
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
  const size_t width = layout.planes();
  model.sections_.reserve(n / grid::kSectionItems + 1);
  for (size_t first = 0; first < n; first += grid::kSectionItems) {
    const size_t count = std::min(grid::kSectionItems, n - first);
    const SectionFit fit(layout, base + width * first, items + width * first, first, count);
    const grid::Grid* const before = first != 0 ? &model.sections_.back() : nullptr;
    model.sections_.push_back(is_best ? fit.best(row, before) : fit.fast());
    model.tables_.emplace_back(model.sections_.back().classes, false);
  }
  return model;
}

grid::RowScales Model::fit_rows(const uint8_t* base, const uint8_t* items, uint64_t first,
                                size_t n) const {
  const Section& of = section(first);
  if (of.run == 0 && of.period == 0) return {};
  return delta::fit_rows(layout_, of, base, items, first, n);
}

}  // namespace bf16codecs::delta
