// Scale, classes and tables of a section, from a sample of its items.

#include <algorithm>
#include <array>
#include <bit>

#include "delta/fit.h"
#include "delta/numbers.h"
#include "format/little_endian.h"
#include "grid/fixed_point.h"
#include "grid/keys.h"

namespace bf16codecs::delta {
namespace {

using grid::kOctave;
using grid::kScaleSteps;

// Numbers of far classes that seem this large are too large to show the scale: their items may be
// near.
constexpr int kMaxInformative(unsigned fraction) {
  return static_cast<int>(fraction) - 2;
}

// A mean number from which on no more low bytes are split off: with less, the low bytes would show
// how small the differences are.
constexpr unsigned kLeastMean = 4;

// log2 of numerator / denominator, in 4096ths.
int log2_ratio(uint64_t numerator, uint64_t denominator) {
  constexpr unsigned kUp = 20;
  return grid::log2_floor(std::max<uint64_t>(1, (numerator << kUp) / denominator)) -
         static_cast<int>(kUp) * kOctave;
}

// Numbers of a sample as those of one far class.
std::vector<uint16_t> far_numbers(const Layout& layout, const Sample& sample, Section section) {
  const size_t n = sample.size();
  section.shape.near = 1;
  std::vector<uint16_t> numbers(n);
  std::vector<uint8_t> classes(n), low_bytes(section.low * n);
  uint8_t* low[kMaxItemSize];
  for (unsigned k = 0; k < section.low; ++k) low[k] = low_bytes.data() + n * k;
  Numbers(layout, section)
      .subtract(sample.base.data(), sample.items.data(), sample.scales.data(), classes.data(), n,
                numbers.data(), low);
  return numbers;
}

// What is known of the items whose base has one exponent.
struct Exponent {
  uint64_t sum = 0, count = 0;  // of numbers

  int log_mean() const { return log2_ratio(sum, count); }
};

std::vector<Exponent> by_exponent(const Layout& layout, const Sample& sample,
                                  const std::vector<uint16_t>& numbers) {
  const grid::KeyFormat format(layout);
  std::vector<Exponent> exponents(size_t{1} << (format.bits - format.fraction));
  std::vector<uint16_t> keys(sample.size());
  grid::load_keys(layout, sample.base.data(), sample.size(), keys.data());
  for (size_t i = 0; i < keys.size(); ++i) {
    Exponent& exponent = exponents[keys[i] >> format.fraction];
    exponent.sum += numbers[i];
    ++exponent.count;
  }
  return exponents;
}

// The sum of the numbers' lengths in bits.
uint64_t total_length(const std::vector<uint16_t>& numbers) {
  uint64_t sum = 0;
  for (const uint16_t number : numbers) sum += static_cast<uint64_t>(std::bit_width(number));
  return sum;
}

// The first items of a sample.
Sample first_items(const Layout& layout, const Sample& sample, size_t n) {
  n = std::min(n, sample.size());
  const auto size = static_cast<std::ptrdiff_t>(n * layout.planes());
  return {{sample.base.begin(), sample.base.begin() + size},
          {sample.items.begin(), sample.items.begin() + size},
          std::vector<uint16_t>(n)};
}

// Integers that cross zero look different from floats that do.
void fit_relation(const Layout& layout, const Sample& of, Section& section) {
  constexpr size_t kEnough = 256;
  const Sample sample = first_items(layout, of, kEnough);
  uint64_t least = UINT64_MAX;
  for (const Relation relation : {Relation::ordered, Relation::plain, Relation::exclusive_or}) {
    Section tried = section;
    tried.relation = relation;
    const uint64_t length = total_length(far_numbers(layout, sample, tried));
    // Without classes, a relation has to gain more than these do.
    if (least != UINT64_MAX && length + least / 8 >= least) continue;
    least = length;
    section.relation = relation;
  }
}

// log2 of the mean difference in the places of the exponents' lowest bits, plus the exponent: the
// same for all of them where rounding alone tells them apart.
int mean_log_scale(const std::vector<Exponent>& exponents, const Section& section) {
  const int fraction = static_cast<int>(section.shape.fraction);
  int64_t sum = 0, weight = 0;
  int highest = 0;
  uint64_t most = 0;
  for (int e = 0; e < static_cast<int>(exponents.size()); ++e) {
    const Exponent& exponent = exponents[static_cast<size_t>(e)];
    if (exponent.count == 0) continue;
    if (exponent.count > most) most = exponent.count, highest = e;
    const int log_mean = exponent.log_mean() + 8 * static_cast<int>(section.low) * kOctave;
    if (exponent.sum == 0 || log_mean > kMaxInformative(section.shape.fraction) * kOctave) continue;
    const auto count = static_cast<int64_t>(exponent.count);
    sum += count * (log_mean + (e - fraction) * kOctave);
    weight += count;
  }
  // Where no difference is small, the base says nothing: all items are near.
  return weight == 0 ? (highest + 2) * kOctave : static_cast<int>(sum / weight);
}

}  // namespace

void fit_scale(const Layout& layout, Sample& sample, bool has_scales, Section& section) {
  const size_t width = layout.planes();
  section.low = width > 2 ? static_cast<unsigned>(width) - 2 : 0;
  fit_relation(layout, sample, section);
  for (;; --section.low) {
    const std::vector<uint16_t> numbers = far_numbers(layout, sample, section);
    const std::vector<Exponent> exponents = by_exponent(layout, sample, numbers);
    uint64_t sum = 0;
    for (const uint16_t number : numbers) sum += std::min<uint16_t>(number, 64 * kLeastMean);
    if (section.low != 0 && sum < kLeastMean * numbers.size()) continue;
    section.shape.near_raw = near_raw_bits(layout.dtype, section.low);
    if (has_scales) return;
    const int log_scale = mean_log_scale(exponents, section);
    const int octave = (log_scale + kOctave / 2) >> 12;
    const int most = grid::KeyFormat(layout).max_scale() / static_cast<int>(kScaleSteps);
    section.base =
        static_cast<uint16_t>(std::clamp(octave, 0, most) * static_cast<int>(kScaleSteps));
    std::fill(sample.scales.begin(), sample.scales.end(), section.base);
    return;
  }
}

namespace {

// Places on their way to classes.
struct Group {
  uint64_t count = 0;
  unsigned places = 0;
  bool is_near = false;
};

// How many of the sample's items are in each of the places.
std::vector<Group> count_places(const Layout& layout, const Sample& sample, Section section) {
  std::vector<Group> groups(section.shape.places);
  for (unsigned i = 0; i < section.shape.places; ++i)
    section.shape.class_of[i] = static_cast<uint8_t>(i);
  std::vector<uint8_t> classes(sample.size());
  Numbers(layout, section)
      .classify(sample.base.data(), sample.scales.data(), sample.size(), classes.data());
  for (const uint8_t c : classes) ++groups[c].count;
  for (Group& group : groups) group.places = 1;
  return groups;
}

// Joins the group with a neighbour of its kind; returns false if it has none.
bool join(std::vector<Group>& groups, size_t i) {
  const auto is_possible = [&](size_t a, size_t b) {
    return b < groups.size() && groups[a].is_near == groups[b].is_near;
  };
  const bool with_next = is_possible(i, i + 1), with_last = i != 0 && is_possible(i - 1, i);
  if (!with_next && !with_last) return false;
  const size_t at =
      with_last && (!with_next || groups[i - 1].count <= groups[i + 1].count) ? i - 1 : i;
  groups[at].count += groups[at + 1].count;
  groups[at].places += groups[at + 1].places;
  groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  return true;
}

// Joins groups until each has enough items for a table, and there are at most `most`.
void join_small(std::vector<Group>& groups, size_t items, unsigned most) {
  constexpr size_t kLeastShare = 128;
  for (;;) {
    size_t smallest = groups.size();
    for (size_t i = 0; i < groups.size(); ++i) {
      if (smallest == groups.size() || groups[i].count < groups[smallest].count) smallest = i;
    }
    if (groups.size() <= most && groups[smallest].count * kLeastShare >= items) return;
    if (join(groups, smallest)) continue;
    // The only one of its kind.
    if (groups.size() == 1) return;
    for (Group& group : groups) group.is_near = false;
  }
}

}  // namespace

void fit_classes(const Layout& layout, const Sample& sample, unsigned most, Section& section) {
  DeltaShape& shape = section.shape;
  shape.places = 1, shape.near = 1;
  if (section.relation != Relation::ordered || sample.size() == 0) return section.classes.resize(1);
  // Places are octaves, from those where one item in 2000 changes to those with larger differences
  // than the base's items.
  constexpr int kLowest = -12, kHighest = 3;
  const int fraction = static_cast<int>(shape.fraction);
  const int lowest = std::max(kLowest, -fraction - 4) - (fraction > 11 ? fraction - 8 : 0);
  const int in_octave = static_cast<int>(kScaleSteps >> shape.step);
  shape.origin = -lowest * static_cast<int>(kScaleSteps);
  shape.places = static_cast<unsigned>(
      std::min((kHighest - lowest) * in_octave, static_cast<int>(kDeltaPlaces)));
  std::vector<Group> groups = count_places(layout, sample, section);
  for (size_t i = 0; i < groups.size(); ++i)
    groups[i].is_near = static_cast<int>(i) >= -lowest * in_octave;
  join_small(groups, sample.size(), most);
  unsigned place = 0;
  shape.near = static_cast<unsigned>(groups.size());
  for (unsigned c = 0; c < groups.size(); ++c) {
    if (groups[c].is_near) shape.near = std::min(shape.near, c);
    for (unsigned i = 0; i < groups[c].places; ++i)
      shape.class_of[place++] = static_cast<uint8_t>(c);
  }
  section.classes.resize(groups.size());
}

namespace {

// Classes and coded numbers of some items.
class Coded {
 public:
  static constexpr size_t kMost = 4096;  // at a time

  Coded(const Layout& layout, const Section& section)
      : width_(layout.planes()), section_(section), numbers_(layout, section) {
    for (unsigned k = 0; k < section.low; ++k) low_[k] = low_bytes_[k];
  }

  void code(const uint8_t* base, const uint8_t* items, const uint16_t* scales, size_t n) {
    numbers_.classify(base, scales, n, classes);
    numbers_.subtract(base, items, scales, classes, n, numbers, low_);
  }

  // Calls function(n) for parts of the sample, coded.
  template <typename Function>
  void for_each_part(const Sample& sample, Function function) {
    for (size_t at = 0; at < sample.size(); at += kMost) {
      const size_t n = std::min(kMost, sample.size() - at);
      code(sample.base.data() + width_ * at, sample.items.data() + width_ * at,
           sample.scales.data() + at, n);
      function(n);
    }
  }

  uint8_t classes[kMost];
  uint16_t numbers[kMost];

 private:
  const size_t width_;
  const Section& section_;
  const Numbers numbers_;
  uint8_t* low_[kMaxItemSize] = {};
  uint8_t low_bytes_[kMaxItemSize][kMost];
};

// The entries of all v, and of those above.
struct EntryTable {
  uint8_t of[kMaxDeltaValue + 2];

  EntryTable() {
    for (unsigned v = 0; v <= kMaxDeltaValue + 1; ++v) of[v] = static_cast<uint8_t>(entry_of(v));
  }
};

// How often the entries of each class occur.
class EntryCounts {
 public:
  explicit EntryCounts(const Section& section) {
    for (unsigned c = 0; c < section.classes.size(); ++c) raw_[c] = section.classes[c].raw;
  }

  void add(const Coded& coded, size_t n) {
    static const EntryTable entries;
    for (size_t i = 0; i < n; ++i) {
      const unsigned c = coded.classes[i];
      const unsigned v = std::min<unsigned>(coded.numbers[i] >> raw_[c], kMaxDeltaValue + 1);
      ++counts_[i % kTables][c][entries.of[v]];
    }
  }

  // Chooses the weights; returns the bits that the counted items take.
  uint64_t choose(size_t width, Section& section) const {
    uint64_t bits = 0;  // in 4096ths
    for (unsigned c = 0; c < section.classes.size(); ++c) {
      uint32_t counts[kDeltaEntries] = {};
      for (unsigned j = 0; j < kDeltaEntries; ++j) {
        for (const auto& table : counts_) counts[j] += table[c][j];
      }
      choose_weights(counts, width, section.classes[c]);
      bits += coded_bits(counts, width, section.classes[c]);
    }
    return bits >> 12;
  }

 private:
  // Several tables, because a run of one entry would wait for its own count otherwise.
  static constexpr size_t kTables = 4;

  uint8_t raw_[kDeltaClasses] = {};
  uint32_t counts_[kTables][kDeltaClasses][kDeltaEntries] = {};
};

}  // namespace

void fit_raw_bits(const Layout& layout, const Sample& sample, Section& section) {
  std::array<Exponent, kDeltaClasses> means{};
  Coded coded(layout, section);
  coded.for_each_part(sample, [&](size_t n) {
    for (size_t i = 0; i < n; ++i) {
      means[coded.classes[i]].sum += coded.numbers[i];
      ++means[coded.classes[i]].count;
    }
  });
  for (unsigned c = 0; c < section.classes.size(); ++c) {
    // So many that numbers are 3 to 6 on average above them.
    int raw = static_cast<int>(section.shape.near_raw);
    if (c < section.shape.near) {
      raw = means[c].sum == 0 ? 0 : (means[c].log_mean() >> 12) - 1;
      raw = std::clamp(raw, 0, static_cast<int>(kMaxDeltaRaw));
    }
    section.classes[c].raw = static_cast<uint8_t>(raw);
  }
}

uint64_t fit_weights(const Layout& layout, const Sample& sample, Section& section) {
  EntryCounts counts(section);
  Coded coded(layout, section);
  coded.for_each_part(sample, [&](size_t n) { counts.add(coded, n); });
  return counts.choose(layout.planes(), section);
}

void fit_weights(const Layout& layout, const uint8_t* base, const uint8_t* items, size_t n,
                 size_t stride, const grid::ItemScales& scales, Section& section) {
  const size_t width = layout.planes();
  EntryCounts counts(section);
  Coded coded(layout, section);
  uint16_t part_scales[Coded::kMost];
  for (size_t at = 0; at < n; at += stride * Coded::kMost) {
    const size_t part = std::min(Coded::kMost, n - at);
    scales.fill(at, part, part_scales);
    coded.code(base + width * at, items + width * at, part_scales, part);
    counts.add(coded, part);
  }
  counts.choose(width, section);
}

}  // namespace bf16codecs::delta
