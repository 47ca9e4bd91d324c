#include "quantized/trial.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "quantized/codes.h"
#include "quantized/groups.h"
#include "rans/frequencies.h"
#include "rans/rans.h"
#include "scattered.h"

namespace bf16codecs::quantized {
namespace {

constexpr size_t kGroupsTried = 32, kGroupItems = 1024, kFirstItems = 64;
// After as many, no more are tried if all have a scale, unless that tells too little; nor if fewer
// than one in kLeastShare have.
constexpr size_t kFewGroups = 8;
constexpr unsigned kLeastShare = 8;

// Loads at most `most` values of the group that item `at` is in; returns whether these are all. If
// not, they are runs of 16 at places that depend on `at`.
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
                                         : scattered_place(at + static_cast<size_t>(k) * array.n,
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

// The items of a group, as far as the array has them; of one that has all, those of a row.
size_t group_items(const Array& array, const Groups& groups) {
  return std::min<size_t>(groups.width, array.row) * std::min<size_t>(groups.height, array.rows);
}

// Of a code: its low bits, and the entropy of the symbols; if no integers were counted, what codes
// usually take.
double code_bits(const std::vector<uint32_t>& integers, const Levels& levels) {
  if (integers.empty()) return 4.0 + levels.low_bits;
  const bool is_table = levels.family == Family::table;
  const size_t beyond = is_table ? 0 : (size_t{16} << levels.low_bits) - integers.size() / 2;
  std::vector<uint32_t> symbols(integers.size());
  uint64_t all = 0;
  for (size_t i = 0; i < integers.size(); ++i) {
    symbols[(i + beyond) >> levels.low_bits] += integers[i];
    all += integers[i];
  }
  const auto size = static_cast<double>(entropy_size(symbols));
  return levels.low_bits + size / (0x1p16 * static_cast<double>(all));
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

// The integers as a table, if there are 2 to 16: of GGUF's IQ3_XXS, with magnitudes from 4 to
// 62, a value takes 4.1 bits then, instead of 6.1 with low bits that most codes do not need.
std::optional<Levels> as_table(const Trial& trial) {
  const int zero = static_cast<int>(trial.integers.size() / 2);
  Levels levels;
  levels.family = Family::table;
  const auto add = [&](float level) {
    if (levels.count < kMostSearched) levels.table[levels.count] = level;
    ++levels.count;
  };
  for (size_t i = 0; i < trial.integers.size(); ++i) {
    if (trial.integers[i] == 0) continue;
    const int integer = static_cast<int>(i) - zero;
    add(static_cast<float>(integer));
    if (integer == 0) add(-0.0f);
  }
  if (levels.count < 2 || levels.count > kMostSearched) return std::nullopt;
  return levels;
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

// Whether a few groups that all have a scale tell too little. Groups with offsets, and groups
// behind each other with the same power of two, may have one by chance; and of a table, all levels
// must have been seen.
bool needs_more(const Trial& trial, const Kind& kind) {
  constexpr unsigned kCoarse = 8;  // bits of such scales as E8M0 and E4M3
  const bool may_be_table = kind.levels.low_bits != 0 && as_table(trial);
  return kind.has_offsets() || trial.number_bits() <= kCoarse || may_be_table;
}

}  // namespace

void Trial::add(const ScaleAndOffset& numbers) {
  constexpr uint32_t kMantissa = (1 << 23) - 1;
  const float magnitude = std::fabs(numbers.scale);
  least_scale = std::min(least_scale, magnitude), most_scale = std::max(most_scale, magnitude);
  scale_bits |= std::bit_cast<uint32_t>(numbers.scale) & kMantissa;
  offset_bits |= std::bit_cast<uint32_t>(numbers.offset) & kMantissa;
}

// About four of each for its exponent and sign, and all of its mantissa that are used. Of products,
// offsets have none.
unsigned Trial::number_bits() const {
  const auto bits = [](uint32_t used) {
    return used == 0 ? 0 : 23 - static_cast<unsigned>(std::countr_zero(used));
  };
  return 4 + bits(scale_bits) + (offset_bits == 0 ? 0 : 4 + bits(offset_bits));
}

Levels Trial::levels(const Kind& kind) const {
  if (kind.levels.family != Family::integers) return kind.levels;
  const Levels integral = with_low_bits(kind.levels, integers);
  const bool may_be_table = integral.low_bits != 0 && !kind.has_offsets();  // tables have none
  const auto table = may_be_table ? as_table(*this) : std::nullopt;
  return table ? *table : integral;
}

Savings Trial::savings(const Array& array, const Kind& kind, const Groups& groups) const {
  constexpr double kOfPlainByte = 5.5;
  const double plain = kOfPlainByte * static_cast<double>(array.layout.planes());
  const bool is_one = groups.width == kAllItems;
  const auto size = static_cast<double>(is_one ? array.n : group_items(array, groups));
  return {plain - code_bits(integers, levels(kind)), number_bits() / size};
}

Label Trial::label() const {
  std::set<int> magnitudes;
  const int zero = static_cast<int>(integers.size() / 2);
  for (size_t i = 0; i < integers.size(); ++i) {
    if (integers[i] != 0) magnitudes.insert(std::abs(static_cast<int>(i) - zero));
  }
  return label_of_integers(magnitudes, spread);
}

Trial try_groups(const Array& array, const Kind& kind, Precision precision, const Groups& groups) {
  const size_t tried = std::clamp<size_t>(array.n / group_items(array, groups), 2, kGroupsTried);
  GroupFinder finder(kind, precision, array.failures);
  std::vector<float> values;
  Trial trial;
  for (size_t k = 0; k < tried; ++k) {
    const bool are_few = trial.found == 0 || trial.found * kLeastShare < trial.tried;
    if (k >= kFewGroups && are_few) break;
    if (k == kFewGroups && trial.is_all() && !needs_more(trial, kind)) break;
    ScaleAndOffset numbers;
    for (const size_t most : {kFirstItems, kGroupItems}) {
      const bool is_all = load_group(array, groups, scattered_place(k + 1, array.n), most, values);
      numbers = finder.find(values.data(), values.size(), is_all);
      if (numbers.scale == 0 || is_all) break;
    }
    const auto zeros = std::count(values.begin(), values.end(), 0.0f);
    if (static_cast<size_t>(zeros) == values.size()) continue;
    ++trial.tried;
    if (numbers.scale == 0) continue;
    ++trial.found;
    trial.add(numbers);
    if (!kind.has_offsets()) count_levels(values, numbers.scale, trial);
    count_integers(kind, precision, values, numbers, trial);
  }
  return trial;
}

}  // namespace bf16codecs::quantized
