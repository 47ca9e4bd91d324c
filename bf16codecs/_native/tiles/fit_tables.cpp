// Choosing a section's tables by the counts of its symbols: one table class or four, Gaussian
// tables with changes or explicit ones, whichever codes the counted items and the tables in the
// fewest bits.

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "grid/fixed_point.h"
#include "grid/log2_table.h"
#include "rans/frequencies.h"
#include "tiles/fit.h"

namespace bf16codecs::tiles {
namespace {

constexpr uint64_t kBit = uint64_t{1} << 16;  // the unit of costs is 2^-16 bits

// The cost of one more interval in the model: a split and a frequency.
constexpr uint64_t kIntervalCost = 10 * kBit;

// A class with fewer counted items is hardly met: it gets no table of its own shape.
constexpr uint64_t kSeldom = 256;

uint64_t log2_of(uint64_t count) {
  return count == 0 ? 0 : log2_fixed(static_cast<uint32_t>(count));
}

using ClassCounts = std::array<uint32_t, 256>;

// below[v] is the sum of the counts of all symbols below v.
struct Sums {
  uint64_t below[257];

  explicit Sums(const ClassCounts& counts) {
    below[0] = 0;
    for (unsigned v = 0; v < 256; ++v) below[v + 1] = below[v] + counts[v];
  }
  uint64_t of(unsigned first, unsigned n) const { return below[first + n] - below[first]; }
  uint64_t of(const Intervals& intervals, unsigned j) const {
    return of(intervals.base[j], 1u << intervals.log2[j]);
  }
};

// Makes the intervals of one class: the longest ones first, then the halves that gain most.
class Splitter {
 public:
  // `weight` is the number of items of the section that each counted one stands for.
  Splitter(const Sums& sums, uint64_t weight) : sums_(sums), weight_(weight) {}

  Intervals split(unsigned first, unsigned end) {
    for (unsigned a = first; a < end;) {
      const unsigned log2 = largest_interval(a, end);
      insert(result_.n, a, log2);
      a += 1u << log2;
    }
    while (result_.n < kMaxIntervals) {
      const auto best = std::max_element(gain_, gain_ + result_.n);
      if (*best * weight_ <= kIntervalCost) break;
      const auto j = static_cast<unsigned>(best - gain_);
      const unsigned log2 = result_.log2[j] - 1u, base = result_.base[j];
      set(j, base, log2);
      insert(j + 1, base + (1u << log2), log2);
    }
    return result_;
  }

 private:
  void insert(unsigned j, unsigned base, unsigned log2) {
    std::copy_backward(result_.base + j, result_.base + result_.n, result_.base + result_.n + 1);
    std::copy_backward(result_.log2 + j, result_.log2 + result_.n, result_.log2 + result_.n + 1);
    std::copy_backward(gain_ + j, gain_ + result_.n, gain_ + result_.n + 1);
    ++result_.n;
    set(j, base, log2);
  }
  void set(unsigned j, unsigned base, unsigned log2) {
    result_.base[j] = static_cast<uint8_t>(base);
    result_.log2[j] = static_cast<uint8_t>(log2);
    gain_[j] = log2 == 0 ? 0 : gain_of(base, log2);
  }
  // The 2^-16 bits that are saved by splitting: two halves have frequencies of their own, and a bit
  // less each.
  uint64_t gain_of(unsigned base, unsigned log2) const {
    const unsigned half = 1u << (log2 - 1);
    const uint64_t low = sums_.of(base, half), high = sums_.of(base + half, half);
    const uint64_t apart = low * log2_of(low) + high * log2_of(high) + (low + high) * kBit;
    const uint64_t together = (low + high) * log2_of(low + high);
    return apart > together ? apart - together : 0;
  }

  const Sums& sums_;
  const uint64_t weight_;
  Intervals result_;
  uint64_t gain_[kMaxIntervals] = {};
};

// The largest frequency among intervals whose frequencies may be odd, or null if there are none.
uint16_t* largest_of(Intervals& intervals) {
  uint16_t* largest = nullptr;
  for (unsigned j = 0; j < intervals.n; ++j) {
    uint16_t& f = intervals.frequency[j];
    if (intervals.log2[j] < kMaxIntervalLog2 && (!largest || f > *largest)) largest = &f;
  }
  return largest;
}

// Sets frequencies with the given sum, which must be even if all intervals are of the longest kind.
void set_frequencies(const Sums& sums, unsigned sum, Intervals& intervals) {
  uint64_t total = 0;
  for (unsigned j = 0; j < intervals.n; ++j) total += sums.of(intervals, j);
  unsigned used = 0;
  for (unsigned j = 0; j < intervals.n; ++j) {
    const uint64_t count = sums.of(intervals, j);
    const unsigned unit = frequency_unit(intervals.log2[j]);
    const uint64_t exact = total == 0 ? 0 : (count * sum + total / 2) / total;
    const unsigned f = std::max(unit, static_cast<unsigned>(exact) / unit * unit);
    intervals.frequency[j] = static_cast<uint16_t>(f);
    used += f;
  }
  // Rounding, and frequencies that are raised to the least, change the sum by little: the largest
  // ones make up for it.
  for (; used > sum; --used) {
    uint16_t* largest = largest_of(intervals);
    if (largest == nullptr || *largest == 1) {
      largest = std::max_element(intervals.frequency, intervals.frequency + intervals.n);
      --*largest, --used;
    }
    --*largest;
  }
  uint16_t* largest = largest_of(intervals);
  if (largest == nullptr) {
    largest = std::max_element(intervals.frequency, intervals.frequency + intervals.n);
  }
  *largest = static_cast<uint16_t>(*largest + (sum - used));
}

// Whether all of these symbols are in intervals of the longest kind, whatever is split.
bool may_be_long_only(unsigned first, unsigned end) {
  constexpr unsigned kLongest = 1u << kMaxIntervalLog2;
  return first % kLongest == 0 && end % kLongest == 0;
}

// Chooses the range of symbols that have a place in the tables: all but rare ones at either end.
void choose_range(const Sums& sums, Section& section) {
  constexpr uint64_t kLowShare = 20000, kHighShare = 30000;  // an item in this many
  constexpr unsigned kOctaveSymbols = 8, kLeast = 32;
  const uint64_t total = sums.of(0, 256);
  unsigned first = kOctaveSymbols, end = 256;
  while (first + kLeast < end && sums.of(1, first + kOctaveSymbols - 1) * kLowShare <= total) {
    first += kOctaveSymbols;
  }
  while (end - 1 > first + kLeast && sums.of(end - 1, 256 - (end - 1)) * kHighShare <= total) --end;
  section.first = first;
  section.end = end;
}

// The number of counted items outside of the range.
uint64_t outside(const Sums& sums, const Section& section) {
  return sums.of(0, 256) - sums.of(section.first, section.end - section.first);
}

// The 2^-16 bits that the counted items of one class take with its intervals. An escape takes
// `key_bits` bits besides.
uint64_t coded_bits(const Sums& sums, unsigned key_bits, const Section& section,
                    const Intervals& intervals) {
  constexpr uint64_t kTotalBits = 12 * kBit;
  const uint64_t escape = kTotalBits - log2_of(section.escape_frequency) + key_bits * kBit;
  uint64_t bits = outside(sums, section) * escape;
  for (unsigned j = 0; j < intervals.n; ++j) {
    const uint64_t each = kTotalBits - log2_of(intervals.frequency[j]) + intervals.log2[j] * kBit;
    bits += sums.of(intervals, j) * each;
  }
  return bits;
}

// The escape's frequency: the share of the items that the range leaves out.
unsigned escape_frequency(const Sums& sums, const Section& section) {
  const uint64_t all = std::max<uint64_t>(1, sums.of(0, 256));
  const auto f = static_cast<unsigned>(std::clamp<uint64_t>(
      (outside(sums, section) * kTableTotal + all / 2) / all, 1, kTableTotal / 2));
  return may_be_long_only(section.first, section.end) ? f + f % 2 : f;
}

// The counts of a section's symbols.
struct Found {
  std::vector<Sums> by_class;
  Sums all;
  uint64_t weight;  // the number of items that each counted one stands for
  unsigned key_bits;

  // A class that is hardly met is expected to look like all of them.
  const Sums& expected(unsigned classes, unsigned c) const {
    return classes == 1 || by_class[c].of(0, 256) < kSeldom ? all : by_class[c];
  }
  const Sums& of(unsigned classes, unsigned c) const { return classes == 1 ? all : by_class[c]; }
};

// Tables of a section, and the bits of its items and of themselves.
struct Choice {
  Section section;
  uint64_t bits = 0;
};

Choice choose_explicit(const Found& found, unsigned classes) {
  Choice choice;
  Section& section = choice.section;
  section.classes = classes;
  choose_range(found.all, section);
  section.escape_frequency = escape_frequency(found.all, section);
  for (unsigned c = 0; c < classes; ++c) {
    const Sums& expected = found.expected(classes, c);
    Intervals& intervals = section.intervals[c];
    intervals = Splitter(expected, found.weight).split(section.first, section.end);
    set_frequencies(expected, kTableTotal - section.escape_frequency, intervals);
    choice.bits +=
        coded_bits(found.of(classes, c), found.key_bits, section, intervals) * found.weight +
        intervals.n * kIntervalCost;
  }
  return choice;
}

// The cost of a change that differs from that of the interval before.
constexpr uint64_t kChangeCost = 6 * kBit;

// 2^(c / 8) in 4096ths for each change c.
constexpr std::array<int64_t, 2 * kMaxChange + 1> make_change_powers() {
  std::array<int64_t, 2 * kMaxChange + 1> powers{};
  for (int c = -kMaxChange; c <= kMaxChange; ++c) {
    powers[static_cast<size_t>(c + kMaxChange)] =
        static_cast<int64_t>(grid::exp2_floor(c * (grid::kOctave / 8) + 16 * grid::kOctave) >> 4);
  }
  return powers;
}
constexpr std::array<int64_t, 2 * kMaxChange + 1> kChangePowers = make_change_powers();

// The gain, in 2^-16 bits, of changing an interval in which `count` items were found instead of
// `expected`: each of them takes change / 8 bits less, and the others pay for the larger share.
int64_t change_gain(uint64_t count, uint64_t expected, int change) {
  constexpr int64_t kLog2E = 94548;
  const int64_t power = kChangePowers[static_cast<size_t>(change + kMaxChange)];
  const int64_t unused = (static_cast<int64_t>(expected) * (power - 4096)) >> 12;
  return static_cast<int64_t>(count) * change * static_cast<int64_t>(kBit / 8) - unused * kLog2E;
}

int choose_change(uint64_t count, uint64_t expected, uint64_t weight, int before) {
  const auto gain = [&](int change) {
    return change_gain(count, expected, change) * static_cast<int64_t>(weight) -
           static_cast<int64_t>(change == before ? 0 : kChangeCost);
  };
  int fitting = -kMaxChange;
  if (count != 0) {
    const int log =
        grid::log2_floor_quickly(count) - grid::log2_floor_quickly(std::max<uint64_t>(1, expected));
    fitting = std::clamp((log + grid::kOctave / 16) / (grid::kOctave / 8), -kMaxChange, kMaxChange);
  }
  int best = before;
  for (const int change : {fitting - 1, fitting, fitting + 1, 0}) {
    if (std::abs(change) <= kMaxChange && gain(change) > gain(best)) best = change;
  }
  return best;
}

// Chooses changes where the class has more or fewer items than a Gaussian; returns the bits that
// they take.
uint64_t choose_changes(const Sums& sums, const Intervals& gaussian, uint64_t weight,
                        Changes& changes) {
  constexpr uint64_t kSame = kBit / 4;
  const uint64_t inside = sums.of(kGaussianFirst, kGaussianEnd - kGaussianFirst);
  if (inside < kSeldom) return 0;
  uint64_t bits = 0;
  int before = 0;
  for (unsigned j = 0; j < gaussian.n; ++j) {
    const uint64_t expected = inside * gaussian.frequency[j] / kTableTotal;
    const int change = choose_change(sums.of(gaussian, j), expected, weight, before);
    bits += change == before ? kSame : kChangeCost;
    changes[j] = static_cast<int8_t>(change);
    before = change;
  }
  return bits;
}

Choice choose_gaussian(const Found& found, unsigned classes) {
  Choice choice;
  Section& section = choice.section;
  section.classes = classes;
  section.is_gaussian = true;
  section.first = kGaussianFirst;
  section.end = kGaussianEnd;
  section.escape_frequency = escape_frequency(found.all, section);
  for (unsigned c = 0; c < classes; ++c) {
    Changes& changes = section.changes[c];
    changes.fill(0);
    const auto plain = gaussian_intervals(classes, c, changes, section.escape_frequency);
    const uint64_t bits = choose_changes(found.of(classes, c), *plain, found.weight, changes);
    auto intervals = gaussian_intervals(classes, c, changes, section.escape_frequency);
    if (!intervals) {
      changes.fill(0);
      intervals = plain;
    }
    section.intervals[c] = *intervals;
    choice.bits +=
        coded_bits(found.of(classes, c), found.key_bits, section, *intervals) * found.weight + bits;
  }
  return choice;
}

}  // namespace

void fit_tables(const SymbolCounts& counts, uint64_t items, unsigned key_bits, Section& section) {
  ClassCounts all{};
  for (const ClassCounts& of : counts) {
    for (unsigned v = 0; v < 256; ++v) all[v] += of[v];
  }
  Found found{{counts.begin(), counts.end()}, Sums(all), 1, key_bits};
  found.weight = std::max<uint64_t>(1, items / std::max<uint64_t>(1, found.all.of(0, 256)));
  Choice best = choose_gaussian(found, 1);
  for (Choice& other :
       std::array<Choice, 3>{choose_gaussian(found, kTileClasses), choose_explicit(found, 1),
                             choose_explicit(found, kTileClasses)}) {
    if (other.bits < best.bits) best = std::move(other);
  }
  static_cast<grid::Grid&>(best.section) = std::move(static_cast<grid::Grid&>(section));
  section = std::move(best.section);
}

}  // namespace bf16codecs::tiles
