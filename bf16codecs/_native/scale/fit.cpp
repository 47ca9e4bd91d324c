// Fitting a scale model: grid, curve and frequencies of each section.

#include <algorithm>
#include <array>
#include <cstdlib>

#include "grid/fixed_point.h"
#include "grid/grid.h"
#include "grid/keys.h"
#include "scale/scales.h"
#include "scale/tables.h"

namespace bf16codecs::scale {

using grid::exp2_floor;
using grid::kMaxClass;
using grid::kOctave;
using grid::kSectionItems;
using grid::log2_floor;

namespace {

constexpr int kCurveUnit = kOctave / 8;

// Estimates the exponent of the standard deviation of keys that are Gaussian: one below the largest
// exponent that is not rare.
int typical_exponent(const KeyFormat& format, const std::vector<uint16_t>& keys) {
  std::vector<uint32_t> histogram(size_t{1} << (format.bits - format.fraction));
  constexpr size_t kSample = 1 << 16;
  const size_t stride = keys.size() / kSample + 1;
  for (size_t i = 0; i < keys.size(); i += stride) ++histogram[keys[i] >> format.fraction];
  size_t e = histogram.size() - 1;
  while (e > 1 && histogram[e] < keys.size() / stride / 256) --e;
  return static_cast<int>(e) - 1;
}

class SectionFit {
 public:
  SectionFit(const KeyFormat& format, const std::vector<uint16_t>& keys, uint64_t first)
      : format_(format),
        keys_(keys),
        first_(first),
        magnitudes_(format, typical_exponent(format, keys)) {}

  Section fit(size_t row, const Section* before) {
    constexpr size_t kMinRows = 4;
    section_.row_length = grid::choose_row_length(row);
    if (row >= grid::kMinRow && row <= keys_.size() / kMinRows) fit_columns(row, before);
    fit_rows();
    fit_curve();
    return std::move(section_);
  }

 private:
  Scales rows(const std::vector<uint32_t>& columns) const {
    return row_scales(magnitudes_, keys_.data(), first_, keys_.size(), section_.row_length,
                      columns);
  }

  // Finds column scales, given row scales that were found without them; every row has the same
  // columns, so that this does not bias them. Keeps them if they pay: new classes, or changes to
  // those of the section before.
  void fit_columns(size_t period, const Section* before) {
    const Scales by_row = rows({});
    Scales columns = column_scales(magnitudes_, keys_.data(), first_, keys_.size(),
                                   section_.row_length, period, inverse_scales(centered(by_row)));
    Choice choice = choose_step(columns, mean_log_scale(columns));
    if (before && before->period == period) {
      const int unit = kScaleUnit << before->column_step;
      for (size_t i = 0; i < period; ++i) columns.log_scale[i] -= before->columns[i] * unit;
      Choice change{0, before->column_step, {}};
      change.cost = choose_classes(columns, mean_log_scale(columns), unit, change.classes);
      if (change.cost < choice.cost) {
        choice = std::move(change);
        section_.columns_change = true;
        for (size_t i = 0; i < period; ++i) {
          choice.classes[i] = static_cast<int16_t>(
              std::clamp(choice.classes[i] + before->columns[i], -kMaxClass, kMaxClass));
        }
      }
    }
    if (choice.classes.empty()) return;
    section_.period = static_cast<uint32_t>(period);
    section_.column_step = choice.step;
    section_.columns = std::move(choice.classes);
    section_.inverse_columns = inverse_columns(section_);
  }

  void fit_rows() {
    const Scales by_row = rows(section_.inverse_columns);
    const int center = mean_log_scale(by_row);
    section_.base = static_cast<uint16_t>(std::clamp(center / kScaleUnit, 0, format_.max_scale()));
    Choice choice = choose_step(by_row, grid::center_of(section_.base));
    section_.row_step = choice.step;
    if (choice.classes.empty()) section_.row_length = 0;
    scales_.rows = std::move(choice.classes);
  }

  static std::vector<int> centered(const Scales& scales) {
    const int center = mean_log_scale(scales);
    std::vector<int> result(scales.log_scale);
    for (size_t i = 0; i < result.size(); ++i) {
      result[i] = scales.count[i] ? result[i] - center : 0;
    }
    return result;
  }

  struct Choice {
    uint64_t cost;
    uint8_t step;
    std::vector<int16_t> classes;  // empty if classes do not pay
  };

  // Chooses the step and the classes that cost least.
  static Choice choose_step(const Scales& scales, int center) {
    Choice best{cost_of_one(scales, center), 0, {}};
    std::vector<int16_t> classes;
    for (uint8_t step = 0; step < 4; ++step) {
      const uint64_t cost = choose_classes(scales, center, kScaleUnit << step, classes);
      if (cost < best.cost) best = {cost, step, classes};
    }
    return best;
  }

  // Counts symbols at each fraction of a scale, in all of the section or a part of it.
  void count(const SymbolSet& symbols, SymbolCounts& counts, uint64_t& sampled) {
    const SymbolLookup lookup(format_, symbols);
    const ScaleMap scale_map(format_, section_, scales_, first_);
    constexpr size_t kWhole = 1 << 20, kSkip = 4;
    const size_t every = keys_.size() > kWhole ? kSkip : 1;
    uint16_t scales[kTile];
    for (size_t at = 0, tile = 0; at < keys_.size(); at += kTile, ++tile) {
      const size_t n = std::min(kTile, keys_.size() - at);
      if (tile % every) continue;
      scale_map.fill(at, n, scales);
      sampled += n;
      for (size_t i = 0; i < n; ++i) {
        ++counts[scales[i] % kScaleSteps][lookup.find(keys_[at + i], scales[i])];
      }
    }
  }

  void fit_curve() {
    const SymbolSet symbols(format_);
    SymbolCounts counts{};
    uint64_t sampled = 0;
    count(symbols, counts, sampled);
    uint64_t zeros = 0, escapes = 0;
    for (const auto& of : counts) zeros += of[symbols.zero()], escapes += of[symbols.escape()];
    const auto share = [&](uint64_t uses, uint64_t limit) {
      return static_cast<uint16_t>(std::min(limit, (uses * kModelTotal + sampled / 2) / sampled));
    };
    section_.escape_frequency = std::max<uint16_t>(1, share(escapes, 512));
    section_.zero_frequency = share(zeros, 3456);
    fit_nodes(symbols, counts);
  }

  // Chooses the curve's heights: where items are denser or rarer than a Gaussian.
  void fit_nodes(const SymbolSet& symbols, const SymbolCounts& counts) {
    std::array<uint64_t, kCurveNodes> found{}, expected{};
    for (unsigned t = 0; t < kScaleSteps; ++t) {
      uint64_t weights[kMaxSymbols], total = 0, uses = 0;
      for (unsigned s = 0; s < symbols.zero(); ++s) {
        const int log_weight = gaussian_log_mass(symbols, s, t) + 28 * kOctave;
        weights[s] = exp2_floor(std::max(0, log_weight));
        total += weights[s];
        uses += counts[t][s];
      }
      for (unsigned s = 0; s < symbols.zero(); ++s) {
        const auto node = static_cast<size_t>((curve_place(symbols, s, t) + kOctave / 2) / kOctave);
        found[node] += counts[t][s];
        expected[node] += ((weights[s] << 30) / total * uses) >> 18;
      }
    }
    int height = 0;
    for (size_t node = 0; node < kCurveNodes; ++node) {
      height = choose_height(found[node], expected[node], height);
      section_.curve[node] = static_cast<int16_t>(height);
    }
  }

  // Chooses the height that saves most; one that differs from the height before costs a few bits.
  // `expected` is in 4096ths.
  static int choose_height(uint64_t found, uint64_t expected, int before) {
    constexpr int kChange = 5 * kOctave, kLimit = 120, kLog2E = 5909;
    const auto gain = [&](int height) {
      const auto grown = static_cast<int64_t>(exp2_floor(height * kCurveUnit + 16 * kOctave) >> 4);
      const int64_t unused = (static_cast<int64_t>(expected) * (grown - kOctave)) >> 12;
      return static_cast<int64_t>(found) * height * kCurveUnit - ((unused * kLog2E) >> 12) -
             (height == before ? 0 : kChange);
    };
    int fitting = -kLimit;
    if (found) {
      const int log_ratio =
          log2_floor(found) + 12 * kOctave - log2_floor(std::max<uint64_t>(1, expected));
      fitting = std::clamp((log_ratio + kCurveUnit / 2) / kCurveUnit, -kLimit, kLimit);
    }
    int best = before;
    for (const int height : {fitting - 1, fitting, fitting + 1, 0}) {
      if (std::abs(height) <= kLimit && gain(height) > gain(best)) best = height;
    }
    return best;
  }

  const KeyFormat format_;
  const std::vector<uint16_t>& keys_;
  const uint64_t first_;
  const Magnitudes magnitudes_;
  Section section_;
  RowScales scales_;
};

}  // namespace

Model Model::fit(const Layout& layout, const uint8_t* items, size_t n, size_t row) {
  Model model;
  model.layout_ = layout;
  const KeyFormat format(layout);
  std::vector<uint16_t> keys;
  for (size_t first = 0; first < n; first += kSectionItems) {
    keys.resize(std::min(kSectionItems, n - first));
    grid::load_keys(layout, items + first * layout.planes(), keys.size(), keys.data());
    if (first == 0 && row < grid::kMinRow) row = find_row(format, keys);
    const Section* before = first ? &model.sections_.back() : nullptr;
    model.sections_.push_back(SectionFit(format, keys, first).fit(row, before));
  }
  return model;
}

}  // namespace bf16codecs::scale
