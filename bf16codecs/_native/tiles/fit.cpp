// Fitting a tile model: grid, rows and tables of each section, from a part of its items.

#include "tiles/fit.h"

#include <algorithm>
#include <functional>
#include <memory>

#include "grid/classes.h"
#include "grid/item_scales.h"
#include "kernels/kernels.h"
#include "threads/lock.h"
#include "threads/pool.h"

namespace bf16codecs::tiles {
namespace {

// Items whose symbols are counted at a time, each time with scales of their own.
constexpr size_t kWindow = kTileItems;

// A section of at most this many items may be one block: then its rows are estimated once.
constexpr size_t kOneBlock = size_t{1} << 18;

// The encoder's data of a section.
struct SectionFit {
  RowFit row_fit;
  FittedRows rows;        // of the whole section, where it is short enough to be one block
  size_t known_rows = 0;  // the items that `rows` describe: the section's, or 0
  std::vector<TileCodeTable> code_tables;
};

// Counts symbols of some items of a section.
class Counter {
 public:
  Counter(const grid::KeyFormat& format, const grid::Grid& grid) : format_(format), grid_(grid) {}

  // Counts the symbols of items [at, at + n), at most kWindow, given the rows of items from `first`
  // on.
  void count(const Items& items, const grid::RowScales& rows, uint64_t first, uint64_t at,
             size_t n) {
    items.load(at, n, keys_);
    grid::ItemScales(format_, grid_, rows, first).fill(static_cast<size_t>(at - first), n, scales_);
    const size_t whole = n / kRecordItems * kRecordItems;
    count_whole(whole);
    for (size_t i = whole; i < n; ++i) {
      const unsigned symbol = static_cast<unsigned>(keys_[i] >> raw_bits(format_)) + kSymbolOrigin -
                              scales_[i] / kScaleFractions * 8;
      ++counts[class_of(scales_[i])][symbol < 256 ? symbol : 0];
    }
  }

  SymbolCounts counts{};

 private:
  // Counts whole records: ordered by class, the symbols of each class are a plane.
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
  alignas(64) uint16_t keys_[kWindow], scales_[kWindow];
  alignas(64) uint8_t symbols_[kWindow + kTileSlack];
  uint16_t escapes_[kWindow];
  uint8_t records_[record_size(kMaxRawBits) * kWindow / kRecordItems];
};

// The number of windows that are counted of a section of n items: an eighth of it, within limits.
// Tables from 2^15 items of 2^16 cost 0.002 bits per item more than tables from all.
size_t windows_of(size_t n) {
  constexpr size_t kLeast = size_t{1} << 16, kMost = size_t{1} << 17;
  return std::min(n, std::clamp(n / 8, kLeast, kMost)) / kWindow;
}

// The number of zeros among items that were looked at.
struct Zeros {
  uint64_t items = 0, zeros = 0;

  void add(size_t n, const FittedRows& rows) { add({n, rows.zeros}); }
  void add(const Zeros& more) { items += more.items, zeros += more.zeros; }
};

// What was counted of a section.
struct Counted {
  SymbolCounts counts{};
  Zeros zeros;

  void add(const SymbolCounts& some) {
    for (unsigned c = 0; c < kTileClasses; ++c) {
      std::transform(counts[c].begin(), counts[c].end(), some[c].begin(), counts[c].begin(),
                     std::plus<>());
    }
  }
};

// Counts in windows, each with rows that are estimated from it alone if they are not known. Several
// threads count some windows each.
Counted count_section(const grid::KeyFormat& format, const grid::Grid& grid, const Items& items,
                      const SectionFit& fit, uint64_t first, size_t n) {
  const size_t windows = std::max<size_t>(1, windows_of(n)), size = std::min(n, kWindow);
  const size_t parts = std::min<size_t>(windows, get_num_threads());
  Counted counted;
  if (fit.known_rows != 0) counted.zeros.add(n, fit.rows);
  Mutex mutex;
  parallel_for(parts, [&](size_t i, Workspace&) {
    const auto counter = std::make_unique<Counter>(format, grid);
    Zeros zeros;
    for (size_t w = windows * i / parts; w < windows * (i + 1) / parts; ++w) {
      const uint64_t at = first + n / windows * w;
      if (fit.known_rows != 0) {
        counter->count(items, fit.rows.scales, first, at, size);
      } else {
        const FittedRows rows = fit.row_fit.fit(items, at, size);
        counter->count(items, rows.scales, at, at, size);
        zeros.add(size, rows);
      }
    }
    const Lock lock(mutex);
    counted.add(counter->counts);
    counted.zeros.add(zeros);
  });
  return counted;
}

}  // namespace

// The encoder's data of a model. It points at the model's sections.
struct Model::Fitted {
  grid::KeyFormat format;
  std::vector<SectionFit> sections;
  uint64_t share_of_zeros = 0;  // of 4096 items
};

Model::Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::fit(const Layout& layout, const uint8_t* bytes, size_t n, size_t row) {
  Model model;
  model.layout_ = layout;
  model.fitted_ = std::make_unique<Fitted>(Fitted{grid::KeyFormat(layout), {}, 0});
  Fitted& fitted = *model.fitted_;
  const Items items(layout, bytes, 0);
  if (row < grid::kMinRow) row = find_row(items, n);
  Zeros seen;
  uint64_t zero_rows = 0;
  model.sections_.reserve(n / grid::kSectionItems + 1);  // their row fits point at them
  for (size_t first = 0; first < n; first += grid::kSectionItems) {
    const size_t count = std::min(grid::kSectionItems, n - first);
    const grid::Grid* const before = first ? &model.sections_.back() : nullptr;
    Section& section = model.sections_.emplace_back();
    FittedGrid grid = fit_grid(fitted.format, items, first, count, row, before);
    static_cast<grid::Grid&>(section) = std::move(grid.grid);
    zero_rows += grid.zeros;
    const int exponent = section.base / static_cast<int>(grid::kScaleSteps);
    SectionFit& fit = fitted.sections.emplace_back(
        SectionFit{RowFit(fitted.format, section, exponent), {}, 0, {}});
    if (count <= kOneBlock) {
      fit.rows = fit.row_fit.fit(items, first, count);
      fit.known_rows = count;
    }
    const Counted counted = count_section(fitted.format, section, items, fit, first, count);
    seen.add(counted.zeros);
    fit_tables(counted.counts, count, fitted.format.bits, section);
    for (unsigned c = 0; c < section.classes; ++c) {
      fit.code_tables.push_back(
          make_code_table(section.intervals[c], section.escape_frequency, *kernels().tiles));
    }
  }
  // Windows may miss rows of zeros, which fit_grid() looks for in all of the section.
  if (n != 0) {
    fitted.share_of_zeros = std::max(seen.zeros * 4096 / seen.items, zero_rows * 4096 / n);
  }
  return model;
}

const TileCodeTable* Model::code_tables(uint64_t item) const {
  return fitted_->sections[section_index(item)].code_tables.data();
}

grid::RowScales Model::fit_rows(const Items& items, uint64_t first, size_t n) const {
  const SectionFit& fit = fitted_->sections[section_index(first)];
  if (first % grid::kSectionItems == 0 && n == fit.known_rows) return fit.rows.scales;
  return fit.row_fit.fit(items, first, n).scales;
}

uint64_t Model::share_of_zeros() const {
  return fitted_->share_of_zeros;
}

}  // namespace bf16codecs::tiles
