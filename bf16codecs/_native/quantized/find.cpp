// First a look at a few items, which is all that plain weights are charged for: on a grid, fewer of
// the significands in a group differ from each other. Then the kinds of levels that explain short
// runs of items, and for these the largest groups that have one scale.

#include "quantized/find.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <span>

#include "format/little_endian.h"
#include "quantized/codes.h"
#include "quantized/groups.h"
#include "quantized/kinds.h"
#include "quantized/values.h"
#include "rans/rans.h"

namespace bf16codecs::quantized {
namespace {

// Items and the rows that they are in.
struct Array {
  const Layout& layout;
  const uint8_t* items;
  size_t n;
  size_t row;  // at least 1
  size_t rows;
  size_t& failures;  // searches in vain that are left

  void load(size_t first, size_t count, float* values) const {
    load_values(layout, items + layout.planes() * first, count, values);
  }
  // Items first, first + step, ...
  void load(size_t first, size_t step, size_t count, float* values) const {
    const size_t width = layout.planes();
    uint8_t bytes[4];
    for (size_t i = 0; i < count; ++i) {
      std::copy_n(items + width * (first + step * i), width, bytes);
      load_values(layout, bytes, 1, values + i);
    }
  }
};

// Place k in [0, count), as if at random: equal distances, and multiples of the golden ratio, meet
// the same columns again and again in arrays of some numbers of rows.
size_t place(size_t k, size_t count) {
  uint64_t mixed = (k + 1) * 0x9E3779B97F4A7C15;
  mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB;
  const uint64_t spread = (mixed ^ mixed >> 31) >> 32;
  return static_cast<size_t>(spread * std::min<uint64_t>(count, UINT32_MAX) >> 32);
}

// --- a look --------------------------------------------------------------------------------------

constexpr size_t kLookItems = 32;

// A number by which significands are told apart.
unsigned significand(const Layout& layout, const uint8_t* item) {
  switch (layout.dtype) {
    case DType::bfloat16:
      return item[0] & 127u;
    case DType::float16:
      return load_le<uint16_t>(item) & 1023u;
    default:
      return (load_le<uint32_t>(item) << 9) * 2654435769u >> 22;
  }
}

// How many of n significands differ in plain weights, by n: in bfloat16 28.2 of 32, with a standard
// deviation of 1.6. Of INT8 in groups of 32 there are 25.
std::vector<float> usual_distinct() {
  std::vector<float> usual{0};
  while (usual.size() <= kLookItems) usual.push_back(usual.back() * (127.0f / 128) + 0.993f);
  return usual;
}

// Looks at items at `places`; returns whether fewer significands differ than in plain weights.
// Zeros, as in pruned ones, have none.
bool is_suspicious(const Array& array, size_t step, size_t places) {
  const size_t width = array.layout.planes(), span = (kLookItems - 1) * step + 1;
  static const std::vector<float> usual = usual_distinct();
  float fewer = 0;
  for (size_t k = 0; k < places; ++k) {
    const uint8_t* const at = array.items + width * place(k, array.n - span + 1);
    uint64_t seen[16] = {};
    size_t others = 0;
    for (size_t i = 0; i < kLookItems; ++i) {
      const uint8_t* const item = at + width * step * i;
      const unsigned s = significand(array.layout, item);
      const bool is_zero = (item[width - 1] & 127) == 0 && item[0] == 0;
      others += is_zero ? 0 : 1;
      seen[s >> 6] |= uint64_t{is_zero ? 0u : 1u} << (s & 63);
    }
    const size_t words = array.layout.dtype == DType::bfloat16 ? 2 : 16;
    unsigned distinct = 0;
    for (size_t w = 0; w < words; ++w) distinct += static_cast<unsigned>(std::popcount(seen[w]));
    fewer += usual[others] - static_cast<float>(distinct);
    // Of plain weights, most are done after eight places.
    if (k % 8 == 7 && fewer < 1.4f * std::sqrt(static_cast<float>(k + 1))) return false;
  }
  return fewer > 5.6f * std::sqrt(static_cast<float>(places));
}

// --- kinds ---------------------------------------------------------------------------------------

constexpr size_t kRunItems = 16, kMostRunItems = 64, kRuns = 16;
// Values of a run that are not zero: fewer are levels of anything.
constexpr size_t kLeastOthers = 5;

// Whether some runs of items, `step` apart, are levels times a scale. Zeros say nothing.
bool explains_runs(const Array& array, const Kind& kind, Precision precision, size_t step) {
  const size_t length = (array.n - 1) / step + 1;  // of the longest run
  if (length < kRunItems) return false;
  GroupFinder finder(kind, precision, array.failures);
  unsigned found = 0;
  for (size_t k = 0; k < kRuns; ++k) {
    // It begins at a multiple of kRunItems, as groups do, of items or of rows, and is longer where
    // most are zeros.
    const size_t begin = place(k, length - kRunItems + 1) / kRunItems * kRunItems;
    const size_t first = begin * step + (step == 1 ? 0 : place(k + kRuns, step));
    float values[kMostRunItems];
    size_t n = kRunItems, others = 0;
    for (; n <= kMostRunItems && first + (n - 1) * step < array.n; n *= 2) {
      if (step == 1) array.load(first, n, values);
      if (step != 1) array.load(first, step, n, values);
      others = n - static_cast<size_t>(std::count(values, values + n, 0.0f));
      if (others >= kLeastOthers) break;
    }
    if (others >= kLeastOthers && finder.find(values, n, false).scale != 0) ++found;
    if (found == 2) return true;
    if (found == 0 && k + 1 == kRuns / 2) return false;
  }
  return false;
}

// --- groups --------------------------------------------------------------------------------------

// Groups to try, the largest first, but for the usual tiles.
std::vector<Groups> possible_groups(const Array& array, bool along_rows, bool along_columns) {
  const auto row = static_cast<uint32_t>(array.row);
  const bool has_rows = array.rows > 1;
  std::vector<Groups> groups;
  if (along_rows && (along_columns || !has_rows)) groups.push_back({kAllItems, 1, kAllItems});
  if (along_rows && along_columns && has_rows) {
    for (const uint32_t side : {128u, 256u, 64u, 32u}) {
      if (side < row && side < array.rows) groups.push_back({row, side, side});
    }
  }
  if (along_rows) {
    if (has_rows) groups.push_back({row, 1, row});
    for (const uint32_t width : {4096u, 2048u, 1024u, 512u, 256u, 128u, 64u, 32u, 16u}) {
      if (has_rows && width >= row) continue;
      // Where no row ends within a group, the rows say nothing.
      if (row % width == 0 || !has_rows) {
        groups.push_back({width, 1, width});
      } else {
        groups.push_back({row, 1, width});
        groups.push_back({width, 1, width});
      }
    }
  }
  if (along_columns && has_rows) {
    groups.push_back({row, kAllItems, 1});
    for (const uint32_t height : {1024u, 512u, 256u, 128u, 64u, 32u, 16u}) {
      if (height < array.rows) groups.push_back({row, height, 1});
    }
  }
  return groups;
}

constexpr size_t kGroupsTried = 32, kGroupItems = 1024, kFirstItems = 64;
// If all of these have a scale, no more are tried. Of groups with offsets, most may have them by
// chance.
constexpr size_t kFewGroups = 8;

// Loads at most `most` values of the group that item `at` is in, spread over it, others for another
// item; returns whether these are all.
bool load_group(const Array& array, const Groups& groups, size_t at, size_t most,
                std::vector<float>& values) {
  const uint64_t of_row = groups.row, r = at / of_row, c = at % of_row;
  const uint64_t row = r / groups.height * groups.height, column = c / groups.width * groups.width;
  const uint64_t width = std::min<uint64_t>({groups.width, of_row - column, array.n});
  const uint64_t all_rows = (array.n + of_row - 1) / of_row;
  const uint64_t size = width * std::min<uint64_t>(groups.height, all_rows - row);
  const uint64_t count = std::min<uint64_t>(size, most), run = std::min<uint64_t>(count, 16);
  values.clear();
  for (uint64_t k = 0; k * run < count; ++k) {
    const uint64_t begin = count == size ? k * run
                                         : place(at + static_cast<size_t>(k) * array.n,
                                                 static_cast<size_t>(size - run + 1));
    const uint64_t end = std::min(begin + run, size);
    for (uint64_t i = begin, length; i < end; i += length) {
      const uint64_t item = (row + i / width) * of_row + column + i % width;
      if (item >= array.n) break;
      length = std::min({end - i, width - i % width, array.n - item});
      values.resize(values.size() + static_cast<size_t>(length));
      array.load(static_cast<size_t>(item), static_cast<size_t>(length),
                 values.data() + values.size() - length);
    }
  }
  return count == size;
}

// The items of a group, as far as the array has them.
size_t group_items(const Array& array, const Groups& groups) {
  return std::min<size_t>(groups.width, array.row) * std::min<size_t>(groups.height, array.rows);
}

struct Trial {
  unsigned found = 0, tried = 0;   // groups that are not all zeros
  std::vector<uint32_t> integers;  // how often each occurs, from the least one on
  int spread = 0;                  // the largest difference of two integers of a group
  std::set<float> tops;            // levels of the largest magnitudes
  unsigned with_one = 0;           // groups whose smallest magnitude but 0 has the level 1

  bool is_all() const { return found == tried; }

  // Of a code: the entropy of the integers, or else of codes as they usually are.
  double bits(const Levels& levels) const {
    double bits = 0, all = 0;
    for (const uint32_t count : integers) all += count;
    for (const uint32_t count : integers) bits += count == 0 ? 0 : count * std::log2(all / count);
    return integers.empty() ? 4.0 + levels.low_bits : bits / all;
  }
};

// About the bits that an item takes less than a plain one.
double saved_bits(const Array& array, const Kind& kind, const Groups& groups, const Trial& trial) {
  constexpr double kOfPlainByte = 5.5, kOfNumber = 16;
  const double plain = kOfPlainByte * static_cast<double>(array.layout.planes());
  const auto size = static_cast<double>(group_items(array, groups));
  const double numbers = kind.has_offsets() ? 2 * kOfNumber : kOfNumber;
  return (plain - trial.bits(kind.levels)) * trial.found / trial.tried - numbers / size;
}

void count_levels(const std::vector<float>& values, float scale, Trial& trial) {
  float least = HUGE_VALF, most = 0;
  for (const float value : values) {
    const float magnitude = std::fabs(value);
    if (magnitude == 0) continue;
    least = std::min(least, magnitude), most = std::max(most, magnitude);
  }
  trial.tops.insert(std::nearbyint(most / std::fabs(scale)));
  trial.with_one += std::nearbyint(least / std::fabs(scale)) == 1 ? 1 : 0;
}

// Counts the integers of a group.
void count_integers(const Kind& kind, Precision precision, const std::vector<float>& values,
                    const ScaleAndOffset& numbers, Trial& trial) {
  if (kind.levels.family != Family::integers) return;
  std::vector<uint32_t> codes;
  find_codes(kind.levels, precision, values, numbers, codes);
  const int zero = 16 << kind.levels.low_bits;
  trial.integers.resize(static_cast<size_t>(2 * zero));
  int least = 0, most = 0;
  for (const uint32_t code : codes) {
    const int integer = code == 0 ? 0 : static_cast<int>(code) - zero;
    ++trial.integers[static_cast<size_t>(integer + zero)];
    least = std::min(least, integer), most = std::max(most, integer);
  }
  trial.spread = std::max(trial.spread, most - least);
}

// The levels with the fewest low bits with which symbols are coded as pairs: wider tables save
// little, and decode several times slower.
Levels with_low_bits(Levels levels, const std::vector<uint32_t>& integers) {
  const int zero = static_cast<int>(integers.size() / 2);
  for (; levels.low_bits < 4; ++levels.low_bits) {
    uint32_t counts[256] = {};
    for (size_t i = 0; i < integers.size(); ++i) {
      const int integer = static_cast<int>(i) - zero;
      if (integers[i] != 0)
        counts[(integer + (16 << levels.low_bits)) >> levels.low_bits] += integers[i];
    }
    if (has_good_pairs(counts)) break;
  }
  return levels;
}

Label label_of(const Trial& trial) {
  std::set<int> magnitudes;
  const int zero = static_cast<int>(trial.integers.size() / 2);
  for (size_t i = 0; i < trial.integers.size(); ++i) {
    if (trial.integers[i] != 0) magnitudes.insert(std::abs(static_cast<int>(i) - zero));
  }
  return label_of_integers(magnitudes, trial.spread);
}

Trial try_groups(const Array& array, const Kind& kind, Precision precision, const Groups& groups) {
  const size_t tried = std::clamp<size_t>(array.n / group_items(array, groups), 2, kGroupsTried);
  GroupFinder finder(kind, precision, array.failures);
  std::vector<float> values;
  Trial trial;
  for (size_t k = 0; k < tried; ++k) {
    if (k == kFewGroups && (trial.found == 0 || (trial.is_all() && !kind.has_offsets()))) break;
    ScaleAndOffset numbers;
    for (const size_t most : {kFirstItems, kGroupItems}) {
      const bool is_all = load_group(array, groups, place(k + 1, array.n), most, values);
      numbers = finder.find(values.data(), values.size(), is_all);
      if (numbers.scale == 0 || is_all) break;
    }
    const auto zeros = std::count(values.begin(), values.end(), 0.0f);
    if (zeros == static_cast<long>(values.size())) continue;
    ++trial.tried;
    if (numbers.scale == 0) continue;
    ++trial.found;
    if (!kind.has_offsets()) count_levels(values, numbers.scale, trial);
    count_integers(kind, precision, values, numbers, trial);
  }
  return trial;
}

// What saves most, and whether it explains all groups that were tried.
struct Best {
  std::optional<Found> found;
  double saved = 1;  // less is not worth the time
  bool is_all = false;
};

// A kind and a rounding that explain runs along rows or columns.
struct Candidate {
  const Kind& kind;
  Rounding rounding;
  bool in_rows, in_columns;
};

// Tries groups; returns whether all that were tried have a scale.
bool consider(const Array& array, const Candidate& candidate, const Groups& groups, Best& best) {
  const auto& [kind, rounding, in_rows, in_columns] = candidate;
  // Codes of eight bits and a scale for so few items take what plain items take.
  const bool is_small = uint64_t{groups.width} * groups.height < 32;
  if (is_small && kind.label == Label::int8) return false;
  const Trial trial = try_groups(array, kind, precision_of(array.layout, rounding), groups);
  if (trial.found < 2) return false;
  const double saved = saved_bits(array, kind, groups, trial);
  if (saved > best.saved) {
    best = {Found{{kind.levels, rounding, kind.label, groups}, kind}, saved, trial.is_all()};
    if (kind.levels.family == Family::integers) {
      best.found->kind.levels = with_low_bits(kind.levels, trial.integers);
      best.found->grid = {best.found->kind.levels, rounding, label_of(trial), groups};
      std::vector<float>& tops = best.found->kind.tops;
      if (trial.tops.size() == 1) tops.insert(tops.begin(), *trial.tops.begin());
      best.found->kind.has_ones = trial.tops.size() > 1 && trial.with_one == trial.found;
    }
  }
  return trial.is_all();
}

// --- palettes ------------------------------------------------------------------------------------

// Adds a number that is not yet among the levels. Returns false if there are too many.
bool add_level(float value, std::vector<float>& levels) {
  uint32_t has = 0;
  for (const float level : levels)
    has |= std::bit_cast<uint32_t>(level) == std::bit_cast<uint32_t>(value) ? 1 : 0;
  if (has != 0) return true;
  if (levels.size() == kMostSearched || !std::isfinite(value)) return false;
  levels.push_back(value);
  return true;
}

// At most 16 different items in all, with a scale that brings the levels near 1.
std::optional<Found> find_palette(const Array& array) {
  constexpr size_t kSampled = 4096;
  std::vector<float> levels;
  for (size_t k = 0; k < std::min(kSampled, array.n); ++k) {
    float value;
    array.load(place(k, array.n), 1, &value);
    if (!add_level(value, levels)) return std::nullopt;
  }
  // Some levels may be rare.
  for (size_t i = 0; i < array.n; i += kSampled) {
    float values[kSampled];
    const size_t n = std::min(kSampled, array.n - i);
    array.load(i, n, values);
    for (size_t k = 0; k < n; ++k) {
      if (!add_level(values[k], levels)) return std::nullopt;
    }
  }
  if (levels.size() < 2) return std::nullopt;
  std::sort(levels.begin(), levels.end(), [](float a, float b) {
    return a < b || (a == b && std::signbit(a) && !std::signbit(b));
  });
  const float most = std::max(std::fabs(levels.front()), std::fabs(levels.back()));
  int exponent;
  std::frexp(most, &exponent);
  Found found;
  found.kind.fixed_scale = std::ldexp(1.0f, exponent);
  found.kind.label = found.grid.label = Label::palette;
  Levels& table = found.kind.levels;
  table.family = Family::table;
  table.count = static_cast<unsigned>(levels.size());
  for (size_t i = 0; i < levels.size(); ++i) {
    table.table[i] = levels[i] / found.kind.fixed_scale;
    if (levels[i] != 0 && !is_within(std::fabs(table.table[i]), kLeastLevel, kMostLevel))
      return std::nullopt;
  }
  if (!is_within(found.kind.fixed_scale, kLeastScale, kMostScale)) return std::nullopt;
  found.grid.levels = table;
  found.grid.groups = {kAllItems, 1, kAllItems};
  return found;
}

std::vector<Rounding> roundings_of(const Layout& layout) {
  switch (layout.dtype) {
    case DType::bfloat16:
      return {Rounding::direct, Rounding::binary16};
    case DType::float16:
      return {Rounding::direct};
    default:
      return {Rounding::direct, Rounding::binary16, Rounding::bfloat16};
  }
}

// Where few significands differ.
struct Axes {
  bool along_rows, along_columns;
};

// Of some kinds, with each rounding.
std::vector<Candidate> candidates(const Array& array, std::span<const Kind> kinds,
                                  const Axes& axes) {
  std::vector<Candidate> found;
  for (const Kind& kind : kinds) {
    for (const Rounding rounding : roundings_of(array.layout)) {
      const Precision precision = precision_of(array.layout, rounding);
      const bool in_rows = axes.along_rows && explains_runs(array, kind, precision, 1);
      const bool in_columns =
          axes.along_columns && explains_runs(array, kind, precision, array.row);
      if (in_rows || in_columns) found.push_back({kind, rounding, in_rows, in_columns});
    }
  }
  return found;
}

// Tries one kind after the other, each with the largest groups first, until one explains all.
void find_products(const Array& array, const Axes& axes, Best& best) {
  for (const Kind& kind : known_kinds()) {
    for (const Candidate& candidate : candidates(array, {&kind, 1}, axes)) {
      for (const Groups& groups : possible_groups(array, candidate.in_rows, candidate.in_columns)) {
        if (consider(array, candidate, groups, best)) break;
      }
      if (best.is_all) return;
    }
  }
}

// Tries the largest groups first, each with all kinds: lines through the values of small groups are
// easily found.
void find_lines(const Array& array, const Axes& axes, Best& best) {
  const auto found = candidates(array, kinds_with_offsets(), axes);
  const auto has = [&](bool Candidate::* axis) {
    return std::any_of(found.begin(), found.end(), [=](const Candidate& of) { return of.*axis; });
  };
  for (const Groups& groups :
       possible_groups(array, has(&Candidate::in_rows), has(&Candidate::in_columns))) {
    for (const Candidate& candidate : found) {
      if (consider(array, candidate, groups, best)) return;
    }
  }
}

constexpr size_t kLeastItems = 1024;

}  // namespace

std::optional<Found> find(const Layout& layout, const uint8_t* items, size_t n, size_t row) {
  if (!has_grids(layout) || n < kLeastItems) return std::nullopt;
  const bool has_rows = row > 1 && row < n && row <= UINT32_MAX / 2;
  const size_t length = has_rows ? row : n;
  // Of small arrays, which are encoded in a few microseconds, fewer.
  size_t failures = std::clamp<size_t>(n >> 6, 16, 256);
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
  find_lines(array, axes, best);
  return best.found;
}

}  // namespace bf16codecs::quantized
