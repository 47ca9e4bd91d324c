// Reading and writing of tile models (docs/format_tiles.md, "The tile model").

#include "tiles/model.h"

#include <algorithm>

#include "format/errors.h"
#include "kernels/kernels.h"

namespace bf16codecs::tiles {
namespace {

using grid::AdaptiveBit;
using grid::AdaptiveInteger;
using grid::get_within;
using grid::SideDecoder;
using grid::SideEncoder;

[[noreturn]] void corrupt(const char* what) {
  throw CorruptDataError(std::string("tile model: ") + what);
}

// The adaptive integers and bits of a section's numbers, beside those of its grid. They last from
// section to section.
struct Learnt {
  AdaptiveInteger range, frequency, change;
  AdaptiveBit split[kMaxIntervalLog2 + 1];
};

class Writer {
 public:
  void put(const Section& section, const Section& before) {
    grids_.put_head(coder_, section);
    grids_.put_columns(coder_, section, before);
    put(learnt_.range, (section.classes != 1) + 2u * !section.is_gaussian);
    put(learnt_.frequency, section.escape_frequency - 1);
    if (!section.is_gaussian) {
      put(learnt_.range, section.first - 1);
      put(learnt_.range, section.end - section.first - 1);
    }
    for (unsigned c = 0; c < section.classes; ++c) {
      if (section.is_gaussian) {
        put_changes(section.changes[c]);
      } else {
        put_table(section, section.intervals[c]);
      }
    }
  }
  std::vector<uint8_t> finish() { return coder_.finish(); }

 private:
  void put(AdaptiveInteger& integer, unsigned number) {
    integer.put(coder_, static_cast<int>(number));
  }

  void put_changes(const Changes& changes) {
    int previous = 0;
    for (const int change : changes) {
      learnt_.change.put(coder_, change - previous);
      previous = change;
    }
  }

  void put_table(const Section& section, const Intervals& intervals) {
    unsigned j = 0;
    for (unsigned a = section.first; a < section.end;) {
      const unsigned log2 = largest_interval(a, section.end);
      put_splits(intervals, log2, j);
      a += 1u << log2;
    }
    int previous = 0;
    for (j = 0; j < intervals.n; ++j) {
      const int half = intervals.frequency[j] / static_cast<int>(frequency_unit(intervals.log2[j]));
      learnt_.frequency.put(coder_, half - previous);
      previous = half;
    }
  }

  // Writes how the 2^log2 symbols from where interval j begins are split; moves j past them.
  void put_splits(const Intervals& intervals, unsigned log2, unsigned& j) {
    const bool is_split = intervals.log2[j] < log2;
    if (log2 > 0) coder_.put(learnt_.split[log2], is_split);
    if (is_split) {
      put_splits(intervals, log2 - 1, j);
      put_splits(intervals, log2 - 1, j);
    } else {
      ++j;
    }
  }

  SideEncoder coder_;
  grid::GridWriter grids_;
  Learnt learnt_;
};

class SectionReader {
 public:
  SectionReader(const Layout& layout, const uint8_t* bytes, size_t size)
      : coder_(bytes, size), grids_(size, grid::KeyFormat(layout).max_scale()) {}

  Section get(const Section& before, uint64_t items) {
    Section section;
    grids_.get_head(coder_, items, section);
    grids_.get_columns(coder_, before, section);
    const unsigned form = number(learnt_.range, 0, 3);
    section.classes = form % 2 == 0 ? 1 : kTileClasses;
    section.is_gaussian = form < 2;
    section.escape_frequency = 1 + number(learnt_.frequency, 0, kMaxFrequency - 1);
    if (section.is_gaussian) {
      section.first = kGaussianFirst, section.end = kGaussianEnd;
    } else {
      section.first = 1 + number(learnt_.range, 0, 254);
      section.end = section.first + 1 + number(learnt_.range, 0, 255 - section.first);
    }
    for (unsigned c = 0; c < section.classes; ++c) {
      if (section.is_gaussian) {
        get_changes(section, c);
      } else {
        get_table(section, section.intervals[c]);
      }
    }
    return section;
  }

 private:
  unsigned number(AdaptiveInteger& integer, unsigned least, unsigned most) {
    return static_cast<unsigned>(
        get_within(integer, coder_, static_cast<int>(least), static_cast<int>(most)));
  }

  void get_changes(Section& section, unsigned c) {
    int change = 0;
    for (auto& of : section.changes[c]) {
      change += learnt_.change.get(coder_);
      if (change < -kMaxChange || change > kMaxChange) corrupt("a change out of range");
      of = static_cast<int8_t>(change);
    }
    const auto intervals =
        gaussian_intervals(section.classes, c, section.changes[c], section.escape_frequency);
    if (!intervals) corrupt("frequencies of more than 4096 in all");
    section.intervals[c] = *intervals;
  }

  void get_table(const Section& section, Intervals& intervals) {
    for (unsigned a = section.first; a < section.end;) {
      const unsigned log2 = largest_interval(a, section.end);
      get_splits(intervals, a, log2);
      a += 1u << log2;
    }
    unsigned sum = section.escape_frequency;
    int half = 0;
    for (unsigned j = 0; j < intervals.n; ++j) {
      half += learnt_.frequency.get(coder_);
      if (half < 1 || half > static_cast<int>(kMaxFrequency)) corrupt("a frequency out of range");
      const unsigned f = static_cast<unsigned>(half) * frequency_unit(intervals.log2[j]);
      sum += f;
      if (sum > kTableTotal) corrupt("frequencies of more than 4096 in all");
      intervals.frequency[j] = static_cast<uint16_t>(f);
    }
    if (sum != kTableTotal) corrupt("frequencies that do not sum to 4096");
  }

  void get_splits(Intervals& intervals, unsigned first, unsigned log2) {
    if (log2 > 0 && coder_.get(learnt_.split[log2])) {
      get_splits(intervals, first, log2 - 1);
      get_splits(intervals, first + (1u << (log2 - 1)), log2 - 1);
      return;
    }
    if (intervals.n == kMaxIntervals) corrupt("more than 31 intervals");
    intervals.base[intervals.n] = static_cast<uint8_t>(first);
    intervals.log2[intervals.n++] = static_cast<uint8_t>(log2);
  }

  SideDecoder coder_;
  grid::GridReader grids_;
  Learnt learnt_;
};

}  // namespace

std::vector<uint8_t> Model::write() const {
  Writer writer;
  const Section none;
  for (size_t i = 0; i < sections_.size(); ++i) {
    writer.put(sections_[i], i ? sections_[i - 1] : none);
  }
  return writer.finish();
}

Model Model::read(const Layout& layout, const uint8_t* bytes, size_t size, uint64_t n,
                  uint64_t first, uint64_t last) {
  Model model;
  model.layout_ = layout;
  model.first_section_ = first / grid::kSectionItems;
  SectionReader reader(layout, bytes, size);
  // Sections before those that are wanted are read and dropped: a section may be changes to the one
  // before.
  Section section;
  for (uint64_t begin = 0; begin < last; begin += grid::kSectionItems) {
    const uint64_t items = std::min<uint64_t>(grid::kSectionItems, n - begin);
    section = reader.get(section, items);
    if (begin / grid::kSectionItems < model.first_section_) continue;
    model.sections_.push_back(section);
    std::vector<TileTable>& tables = model.tables_.emplace_back();
    tables.reserve(section.classes);
    for (unsigned c = 0; c < section.classes; ++c) {
      tables.push_back(
          make_table(section.intervals[c], section.escape_frequency, *kernels().tiles));
    }
  }
  return model;
}

}  // namespace bf16codecs::tiles
