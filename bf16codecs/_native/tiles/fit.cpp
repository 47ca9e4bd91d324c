#include "tiles/fit.h"

#include <algorithm>
#include <memory>

#include "grid/classes.h"
#include "kernels/kernels.h"
#include "tiles/scales.h"

namespace bf16codecs::tiles {
namespace {

// Items whose symbols are counted at a time, each time with scales of their own.
constexpr size_t kWindow = kTileItems;

// A section that is no longer may be one block: then its rows are estimated once.
constexpr size_t kOneBlock = size_t{1} << 18;

// In words, as compilers make vectors of that.
size_t count_zeros(const uint16_t* keys, size_t n) {
  constexpr size_t kPart = 4096;
  size_t count = 0;
  for (size_t at = 0; at < n; at += kPart) {
    uint16_t part = 0;
    for (size_t i = at; i < std::min(n, at + kPart); ++i) {
      part = static_cast<uint16_t>(part + (keys[i] <= 1));
    }
    count += part;
  }
  return count;
}

// Counts symbols of some items of a section.
class Counter {
 public:
  Counter(const grid::KeyFormat& format, const grid::Grid& grid) : format_(format), grid_(grid) {}

  // Counts items [at, at + n), at most kWindow, given the rows of items from `first` on.
  void count(const Items& items, const grid::RowScales& rows, uint64_t first, uint64_t at,
             size_t n) {
    items.load(at, n, keys_);
    Scales(format_, grid_, rows, first).fill(static_cast<size_t>(at - first), n, scales_);
    zeros += count_zeros(keys_, n);
    counted += n;
    const size_t whole = n / kRecordItems * kRecordItems;
    count_whole(whole);
    for (size_t i = whole; i < n; ++i) {
      const unsigned symbol = static_cast<unsigned>(keys_[i] >> raw_bits(format_)) + kSymbolOrigin -
                              scales_[i] / kScaleFractions * 8;
      ++counts[scales_[i] % 16 / 4][symbol < 256 ? symbol : 0];
    }
  }

  SymbolCounts counts{};
  uint64_t counted = 0, zeros = 0;

 private:
  // Ordered by class, the symbols of each are a plane.
  void count_whole(size_t n) {
    const TileShape shape{kTileClasses, raw_bits(format_), format_.mask(), 1, 256, false};
    kernels().tiles->order(scales_, n, order_);
    kernels().tiles->arrange(shape, order_, keys_, scales_, n, symbols_, records_, escapes_);
    for (unsigned c = 0; c < kTileClasses; ++c) {
      kScalarKernels.histogram(symbols_ + order_.begin[c], order_.begin[c + 1] - order_.begin[c], 0,
                               counts[c].data());
    }
  }

  const grid::KeyFormat& format_;
  const grid::Grid& grid_;
  TileOrder order_;
  alignas(64) uint16_t keys_[kWindow + kTileSlack], scales_[kWindow + kTileSlack];
  alignas(64) uint8_t symbols_[kWindow + kTileSlack];
  uint16_t escapes_[kWindow + kTileSlack];
  uint8_t records_[record_size(kMaxRawBits) * kWindow / kRecordItems + kTileSlack];
};

// How many windows of a section of n items are counted: an eighth of it, within limits. Tables that
// are made of 2^15 items of 2^16 cost 0.002 bits an item more than those that are made of all.
size_t windows_of(size_t n) {
  constexpr size_t kLeast = size_t{1} << 16, kMost = size_t{1} << 17;
  return std::min(n, std::clamp(n / 8, kLeast, kMost)) / kWindow;
}

// Counts in windows, each with rows that are estimated from it alone if they are not known.
void count_section(const Items& items, const RowFit& fit, const SectionRows& rows, uint64_t first,
                   size_t n, Counter& counter) {
  const size_t windows = windows_of(n), size = windows == 0 ? n : kWindow;
  for (size_t w = 0; w < std::max<size_t>(1, windows); ++w) {
    const uint64_t at = first + n / std::max<size_t>(1, windows) * w;
    if (rows.items != 0) {
      counter.count(items, rows.scales, first, at, size);
    } else {
      counter.count(items, fit.fit(items, at, size), at, at, size);
    }
  }
}

}  // namespace

Model Model::fit(const Layout& layout, const uint8_t* bytes, size_t n, size_t row) {
  Model model;
  model.layout_ = layout;
  const grid::KeyFormat format(layout);
  const Items items(layout, bytes, 0);
  if (row < grid::kMinRow) row = find_row(items, n);
  uint64_t zeros = 0, zero_rows = 0, counted = 0;
  model.sections_.reserve(n / grid::kSectionItems + 1);  // their row fits point at them
  for (size_t first = 0; first < n; first += grid::kSectionItems) {
    const size_t count = std::min(grid::kSectionItems, n - first);
    const grid::Grid* const before = first ? &model.sections_.back() : nullptr;
    Section& section = model.sections_.emplace_back();
    FittedGrid fitted = fit_grid(format, items, first, count, row, before);
    static_cast<grid::Grid&>(section) = std::move(fitted.grid);
    zero_rows += fitted.zeros;
    const RowFit& rows = model.row_fits_.emplace_back(format, section);
    SectionRows& whole = model.rows_.emplace_back();
    if (count <= kOneBlock) whole = {count, rows.fit(items, first, count)};
    const auto counter = std::make_unique<Counter>(format, section);
    count_section(items, rows, whole, first, count, *counter);
    zeros += counter->zeros, counted += counter->counted;
    fit_tables(counter->counts, count, section);
    std::vector<TileCodeTable>& tables = model.code_tables_.emplace_back();
    for (unsigned c = 0; c < section.classes; ++c) {
      tables.push_back(make_code_table(section.intervals[c], section.escape_frequency,
                                       kernels().tiles->reads_code_slots));
    }
  }
  // Windows may miss rows of zeros.
  if (n != 0) model.share_of_zeros_ = std::max(zeros * 4096 / counted, zero_rows * 4096 / n);
  return model;
}

grid::RowScales Model::fit_rows(const Items& items, uint64_t first, size_t n) const {
  const size_t section = first / grid::kSectionItems;
  const SectionRows& rows = rows_[section];
  if (first % grid::kSectionItems == 0 && n == rows.items) return rows.scales;
  return row_fits_[section].fit(items, first, n);
}

}  // namespace bf16codecs::tiles
