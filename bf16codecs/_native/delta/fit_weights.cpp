// Raw bits and weights of a section's classes, from its items or a sample of them.

#include <algorithm>

#include "delta/fit.h"
#include "delta/means.h"
#include "delta/numbers.h"

namespace bf16codecs::delta {
namespace {

// The classes and coded numbers of some items.
class Coded {
 public:
  static constexpr size_t kMost = 4096;  // at a time

  Coded(const Layout& layout, const Section& section)
      : width_(layout.planes()), numbers_(layout, section) {
    for (unsigned k = 0; k < section.low; ++k) low_[k] = low_bytes_[k];
  }

  void code(const uint8_t* base, const uint8_t* items, const uint16_t* scales, size_t n) {
    numbers_.classify(base, scales, n, classes);
    numbers_.subtract(base, items, scales, classes, n, numbers, low_);
  }

  // Codes the sample in parts, and calls function(n) after each.
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
  const Numbers numbers_;
  uint8_t* low_[kMaxItemSize] = {};
  uint8_t low_bytes_[kMaxItemSize][kMost];
};

// The entries of v from 0 to kMaxDeltaValue + 1, which stands for all above.
struct EntryTable {
  uint8_t of[kMaxDeltaValue + 2];

  EntryTable() {
    for (unsigned v = 0; v <= kMaxDeltaValue + 1; ++v) of[v] = static_cast<uint8_t>(delta_entry(v));
  }
};

// Counts the entries of each class.
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
  // Several tables, because an increment of a count that was just incremented waits for the store
  // before it.
  static constexpr size_t kTables = 4;

  uint8_t raw_[kDeltaClasses] = {};
  uint32_t counts_[kTables][kDeltaClasses][kDeltaEntries] = {};
};

}  // namespace

void fit_raw_bits(const Layout& layout, const Sample& sample, Section& section) {
  Coded coded(layout, section);
  std::vector<uint8_t> classes;
  std::vector<uint16_t> numbers;
  coded.for_each_part(sample, [&](size_t n) {
    classes.insert(classes.end(), coded.classes, coded.classes + n);
    numbers.insert(numbers.end(), coded.numbers, coded.numbers + n);
  });
  const std::vector<Mean> means = robust_means<uint8_t>(classes, numbers, kDeltaClasses);
  for (unsigned c = 0; c < section.classes.size(); ++c) {
    // The number of bits above which numbers are 3 to 6 on average.
    int raw = static_cast<int>(section.shape.near_raw);
    if (c < section.shape.near) {
      raw = means[c].sum == 0 ? 0 : (means[c].log() >> 12) - 1;
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
