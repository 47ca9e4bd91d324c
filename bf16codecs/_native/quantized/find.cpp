// First a look at a few items, which is all that plain weights are charged for. Then the kinds of
// levels that explain short runs of items, and for these the largest groups that have one scale.

#include "quantized/find.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <vector>

#include "quantized/encode.h"
#include "quantized/geometry.h"
#include "quantized/groups.h"
#include "quantized/kinds.h"
#include "quantized/look.h"
#include "quantized/palette.h"
#include "quantized/trial.h"
#include "scattered.h"

namespace bf16codecs::quantized {
namespace {

constexpr size_t kRunItems = 16, kMostRunItems = 64, kRuns = 16;
// Values of a run that are not zero: fewer are levels of anything.
constexpr size_t kLeastOthers = 5;

// Fewer runs or groups may have a scale by chance.
constexpr unsigned kLeastFound = 2;

struct Share {
  unsigned found = 0, all = 0;

  bool is_some() const { return found >= kLeastFound; }
  bool is_most() const { return is_some() && 2 * found >= all; }
};

// How many runs of items, `step` apart, are levels times a scale. Zeros say nothing.
Share explained_runs(const Array& array, const Kind& kind, Precision precision, size_t step) {
  const size_t length = (array.n - 1) / step + 1;  // of the longest run
  Share runs;
  if (length < kRunItems) return runs;
  GroupFinder finder(kind, precision, array.failures);
  for (size_t k = 0; k < kRuns; ++k) {
    // It begins at a multiple of kRunItems, as groups do, of items or of rows, and is longer where
    // most are zeros.
    const size_t begin = scattered_place(k, length - kRunItems + 1) / kRunItems * kRunItems;
    const size_t first = begin * step + (step == 1 ? 0 : scattered_place(k + kRuns, step));
    float values[kMostRunItems];
    size_t n = kRunItems, others = 0;
    for (; n <= kMostRunItems && first + (n - 1) * step < array.n; n *= 2) {
      array.load(first, step, n, values);
      others = n - static_cast<size_t>(std::count(values, values + n, 0.0f));
      if (others >= kLeastOthers) break;
    }
    if (others < kLeastOthers) continue;
    ++runs.all;
    if (finder.find(values, n, false).scale != 0) ++runs.found;
    if (runs.found == 0 && k + 1 >= kRuns / 2) break;
    if (runs.found == kLeastFound && kind.has_offsets()) break;  // to find more takes long
  }
  return runs;
}

// What saves most, and whether it explains all groups that were tried.
struct Best {
  std::optional<Found> found;
  double saved = 1;  // bits of an item; less is not worth the time
  bool is_all = false;
  bool is_part = false;  // whether its groups are integers that have the same scale
  Savings savings = {};
};

// A kind and a rounding that explain some runs along rows or columns.
struct Candidate {
  const Kind& kind;
  Rounding rounding;
  bool in_rows, in_columns;
  bool is_likely;  // it explains most of the runs
};

// Searches in vain that are allowed for scales of odd groups, and for lines.
constexpr size_t kMoreFailures = 64;

Trial consider(const Array& array, const Candidate& candidate, const Groups& groups, Best& best) {
  const auto& [kind, rounding, in_rows, in_columns, is_likely] = candidate;
  // Codes of eight bits and a scale for so few items take what plain items take.
  const bool is_small = uint64_t{groups.width} * groups.height < 32;
  if (is_small && kind.label == Label::int8) return {};
  Trial trial = try_groups(array, kind, precision_of(array.layout, rounding), groups);
  if (trial.found < kLeastFound) return trial;
  const Savings savings = trial.savings(array, kind, groups);
  const double saved = savings.with(double{1} * trial.found / trial.tried);
  // Of kinds that explain the same groups, a later one must save some bits of each group's numbers:
  // of a few groups, these may look shorter than they are.
  constexpr double kFewBits = 5;
  const bool is_same = best.found && best.found->grid.groups == groups;
  const double least = is_same ? kFewBits / (double{1} * groups.width * groups.height) : 0;
  if (saved > best.saved + least) {
    const Grid grid{kind.levels, rounding, kind.label, groups};
    best = {Found{grid, kind}, saved, trial.is_all(), false, savings};
    if (kind.levels.family == Family::integers) {
      best.is_part = !kind.has_offsets() && groups.width != kAllItems && trial.has_one_scale();
      const Levels levels = trial.levels(kind);
      best.found->kind.levels = levels;
      best.found->grid = {levels, rounding, trial.label(), groups};
      std::vector<float>& tops = best.found->kind.tops;
      if (trial.tops.size() == 1) tops.insert(tops.begin(), *trial.tops.begin());
      best.found->kind.has_ones = trial.tops.size() > 1 && trial.with_one == trial.found;
    }
  }
  return trial;
}

// Whether binary16 or bfloat16 has a number; of bfloat16's, binary16 has only the larger ones.
bool has_number(Rounding rounding, float number) {
  const auto bits = std::bit_cast<uint32_t>(number);
  if (rounding == Rounding::binary16) return (bits & 0x1FFF) == 0;
  return (bits & 0xFFFF) == 0 || std::fabs(number) < 0x1p-17f;
}

// The roundings that a dtype has, but for those which few items can be of.
std::vector<Rounding> roundings_of(const Array& array) {
  constexpr size_t kItems = 64, kLeastItems = 16;
  std::vector<Rounding> found{Rounding::direct};
  for (const Rounding rounding : {Rounding::binary16, Rounding::bfloat16}) {
    if (!is_possible(array.layout, rounding)) continue;
    size_t count = 0;
    for (size_t k = 0; k < kItems; ++k) {
      float number;
      array.load(scattered_place(k, array.n), 1, &number);
      count += has_number(rounding, number) ? 1 : 0;
    }
    if (count >= kLeastItems) found.push_back(rounding);
  }
  return found;
}

// Along which axes fewer significands differ than in plain weights.
struct Axes {
  bool along_rows, along_columns;
};

// Of some kinds, with each rounding.
std::vector<Candidate> candidates(const Array& array, std::span<const Kind> kinds,
                                  const Axes& axes) {
  const std::vector<Rounding> roundings = roundings_of(array);
  std::vector<Candidate> found;
  for (const Kind& kind : kinds) {
    for (const Rounding rounding : roundings) {
      const Precision precision = precision_of(array.layout, rounding);
      Share rows, columns;
      if (axes.along_rows) rows = explained_runs(array, kind, precision, 1);
      if (axes.along_columns) columns = explained_runs(array, kind, precision, array.row);
      if (!rows.is_some() && !columns.is_some()) continue;
      found.push_back(
          {kind, rounding, rows.is_some(), columns.is_some(), rows.is_most() || columns.is_most()});
    }
  }
  return found;
}

// Tries groups of a candidate, the largest first, and odd ones only where others explain something.
void find_groups(const Array& array, const Candidate& candidate, Best& best) {
  bool explain_some = false;
  const auto try_all = [&](const Array& of, const std::vector<Groups>& all) {
    for (const Groups& groups : all) {
      const Trial trial = consider(of, candidate, groups, best);
      explain_some = explain_some || trial.found >= kLeastFound;
      if (trial.is_all()) return;
    }
  };
  try_all(array, possible_groups(array, candidate.in_rows, candidate.in_columns));
  if (!explain_some) return;
  size_t failures = kMoreFailures;
  const Groups* const found = best.is_all ? &best.found->grid.groups : nullptr;
  try_all(array.with_failures(failures),
          odd_groups(array, candidate.in_rows, candidate.in_columns, found));
}

// The share of some items that are in groups that have a scale.
double share_of_coded(const Array& array, const Found& found) {
  constexpr size_t kItems = 1 << 14;
  const size_t n = std::min(kItems, array.n);
  Workspace workspace;
  Parts parts;
  const bool is_any = quantize(array.layout, found, 0, array.items, n, workspace, parts);
  const auto plain = static_cast<double>(parts.plain.size());
  return is_any ? 1 - plain / static_cast<double>(array.layout.planes() * n) : 0;
}

// Tries the roundings of a kind. A wrong one explains most groups that are small, of INT4 99 of 100
// groups of 128: where it leaves some items plain, others are tried, too.
void find_rounding(const Array& array, std::span<const Candidate> all, Best& best) {
  constexpr uint64_t kTellingItems = 512;  // groups from this size on tell the rounding
  std::optional<Best> most;                // once one explains all groups that were tried
  double most_saved = 0, most_share = 0;
  for (const Candidate& candidate : all) {
    Best own = best;
    size_t failures = array.failures / static_cast<size_t>(&all.back() - &candidate + 1);
    array.failures -= failures;
    find_groups(array.with_failures(failures), candidate, own);
    array.failures += failures;
    if (!own.is_all && !most) {
      best = own;
      continue;
    }
    if (!own.found) continue;
    const Groups& groups = own.found->grid.groups;
    const bool is_large = uint64_t{groups.height} * groups.width >= kTellingItems;
    const bool is_sure = own.is_all && is_large;
    const double share = is_sure ? 1 : share_of_coded(array, *own.found);
    const double saved = own.savings.with(share);
    const bool is_same = most && most->found->grid.groups == groups;
    if (!most || (is_same ? share > most_share : saved > most_saved)) {
      most = own, most_saved = saved, most_share = share;
    }
    if (share == 1) break;
  }
  if (!most) return;
  best = *most;
  best.is_all = true;
}

// Most small groups of INT8 that have one scale together pass for INT5. Larger integers in larger
// groups, of which some are plain, took up to 0.9 bits less, or none.
void find_larger_integers(const Array& array, const Axes& axes, Best& best) {
  const auto saved = [&](const Best& of) {
    return of.savings.with(share_of_coded(array, *of.found));
  };
  const Label label = best.found->kind.label;
  double most = saved(best);
  bool is_larger = false;
  for (const Kind& kind : known_kinds()) {
    const bool is_tried = is_larger && kind.levels.family == Family::integers;
    is_larger = is_larger || kind.label == label;
    if (!is_tried) continue;
    Best other;
    for (const Candidate& candidate : candidates(array, {&kind, 1}, axes))
      find_groups(array, candidate, other);
    if (!other.found || saved(other) <= most) continue;
    most = saved(other);
    best = other;
  }
}

// Tries one kind after the other until one explains all; those that explain few runs, as some do by
// chance, come last.
void find_products(const Array& array, const Axes& axes, Best& best) {
  std::vector<Candidate> unlikely;
  for (const Kind& kind : known_kinds()) {
    std::vector<Candidate> likely;
    for (const Candidate& candidate : candidates(array, {&kind, 1}, axes)) {
      (candidate.is_likely ? likely : unlikely).push_back(candidate);
    }
    // Some searches are left to the last kind: INT6 explains most runs of INT8.
    const bool is_last = &kind == &known_kinds().back();
    size_t failures = is_last ? array.failures : array.failures / 4;
    array.failures -= failures;
    find_rounding(array.with_failures(failures), likely, best);
    array.failures += failures;
    if (!best.is_all) continue;
    if (best.is_part) find_larger_integers(array, axes, best);
    return;
  }
  for (const Candidate& candidate : unlikely) {
    find_groups(array, candidate, best);
    if (best.is_all) return;
  }
}

// Tries the largest groups first, each with all kinds: lines through the values of small groups are
// easily found, and of two formulas that explain all groups, one may have simpler offsets.
void find_lines(const Array& array, const Axes& axes, Best& best) {
  const auto found = candidates(array, kinds_with_offsets(), axes);
  const auto has = [&](bool Candidate::* axis) {
    return std::any_of(found.begin(), found.end(), [=](const Candidate& of) { return of.*axis; });
  };
  for (const Groups& groups :
       possible_groups(array, has(&Candidate::in_rows), has(&Candidate::in_columns))) {
    bool is_all = false;
    for (const Candidate& candidate : found) {
      is_all = consider(array, candidate, groups, best).is_all() || is_all;
    }
    if (is_all) return;
  }
}

constexpr size_t kLeastItems = 1024;

}  // namespace

std::optional<Found> find(const Layout& layout, const uint8_t* items, size_t n, size_t row) {
  if (!supports(layout) || n < kLeastItems) return std::nullopt;
  const bool has_rows = row > 1 && row < n && row <= UINT32_MAX / 2;
  const size_t length = has_rows ? row : n;
  // Of small arrays, which are encoded in a few microseconds, fewer.
  size_t failures = std::clamp<size_t>(n >> 5, 32, 256);
  const Array array{layout, items, n, length, (n + length - 1) / length, failures};
  const bool has_columns = has_rows && array.rows >= kLookItems;
  const size_t places = std::clamp<size_t>(n >> 10, 2, 32);
  const bool along_rows = is_suspicious(array, 1, places);
  const bool along_columns = has_columns && is_suspicious(array, row, places);
  if (!along_rows && !along_columns) return std::nullopt;
  const Axes axes{along_rows, along_columns};
  Best best;
  find_products(array, axes, best);
  // Integers of eight bits explain groups of any few values, as lines with an offset have.
  if (best.is_all && best.found->grid.label != Label::int8) return best.found;
  if (auto palette = find_palette(array)) return palette;
  size_t of_lines = kMoreFailures;
  find_lines(array.with_failures(of_lines), axes, best);
  return best.found;
}

}  // namespace bf16codecs::quantized
