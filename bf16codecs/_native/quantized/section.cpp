#include "quantized/section.h"

#include <algorithm>
#include <bit>

#include "kernels/kernels.h"
#include "quantized/values.h"

namespace bf16codecs::quantized {

Section::Section(const Block& block, Scratch& scratch)
    : block_(block),
      scratch_(scratch),
      bands_(block.groups, block.first, block.n),
      next_(block.groups, block.first, block.n),
      has_columns_(block.groups.width == 1 && block.groups.row > 1 && block.groups.height > 1) {}

bool Section::next() {
  begin_ = end_;
  if (begin_ == block_.n) return false;
  runs_.clear();
  size_ = 0;
  if (block_.groups.height == 1) {
    take_groups();
  } else {
    take_band();
  }
  load();
  return true;
}

// Of groups in one row each, a run is a group.
void Section::take_groups() {
  while (end_ < block_.n && size_ < kSectionValues) {
    const Run run = next_.next(block_.n - end_);
    if (runs_.empty()) first_group_ = run.group;
    add(run);
  }
  groups_ = runs_.size();
}

void Section::take_band() {
  const Groups& groups = block_.groups;
  const uint64_t band = (block_.first + begin_) / groups.row / groups.height;
  const uint64_t end_of_band = (band + 1) * groups.height * groups.row - block_.first;
  const auto end = static_cast<size_t>(std::min<uint64_t>(block_.n, end_of_band));
  first_group_ = static_cast<size_t>((band - bands_.first) * bands_.columns);
  groups_ = static_cast<size_t>(bands_.columns);
  if (has_columns_) {
    before_ = static_cast<size_t>((block_.first + begin_) % groups.row);
    size_ = (before_ + end - begin_ + groups.row - 1) / groups.row * groups.row;
    end_ = end;
  } else {
    while (end_ < end) add(next_.next(end - end_));
  }
}

void Section::add(const Run& run) {
  runs_.push_back(
      {static_cast<uint32_t>(run.group - first_group_), static_cast<uint32_t>(run.length), size_});
  size_ += padded(run.length);
  end_ += run.length;
}

void Section::load() {
  // From the start of a line on, vectors do not meet two lines.
  constexpr size_t kLine = 64;
  const size_t bytes = sizeof *values_ * padded(size_);
  uint8_t* memory = scratch_.at_least(3 * bytes + kLine);
  memory += -reinterpret_cast<uintptr_t>(memory) % kLine;
  values_ = reinterpret_cast<float*>(memory);
  codes_ = reinterpret_cast<uint32_t*>(memory + bytes);
  levels_ = reinterpret_cast<float*>(memory + 2 * bytes);
  const size_t width = block_.layout.planes();
  const uint8_t* items = block_.items + width * begin_;
  const size_t n = end_ - begin_;
  if (has_columns_ || size_ == n) {
    // Rows are made up with zeros, which are levels with any scale.
    std::fill_n(values_, before_, 0.0f);
    load_values(block_.layout, items, n, values_ + before_);
    return std::fill(values_ + before_ + n, values_ + size_, 0.0f);
  }
  for (const GroupRun& run : runs_) {
    float* const values = values_ + run.offset;
    load_values(block_.layout, items, run.length, values);
    std::fill(values + run.length, values + padded(run.length), values[0]);
    items += width * run.length;
  }
}

GroupedValues Section::values() const {
  const size_t rows = has_columns_ ? size_ / groups_ : 0;
  return {values_, groups_, runs_.data(), runs_.size(), rows};
}

// Each row has a run of each group, but for the first row and the last one of the block.
template <typename Function>
bool Section::all_runs(size_t group, Function function) const {
  if (has_columns_) {
    const size_t end = before_ + end_ - begin_;
    const size_t first = group < before_ ? group + groups_ : group;
    for (size_t i = first; i < end; i += groups_) {
      if (!function(i, size_t{1})) return false;
    }
    return true;
  }
  const size_t first = runs_[0].group;
  for (size_t r = (group + groups_ - first) % groups_; r < runs_.size(); r += groups_) {
    if (!function(runs_[r].offset, size_t{runs_[r].length})) return false;
  }
  return true;
}

template <typename Function>
void Section::for_runs(size_t group, Function function) const {
  all_runs(group, [&](size_t offset, size_t length) {
    function(offset, length);
    return true;
  });
}

void Section::collect(size_t group, std::vector<float>& values) const {
  values.clear();
  for_runs(group, [&](size_t offset, size_t length) {
    values.insert(values.end(), values_ + offset, values_ + offset + length);
  });
}

bool Section::is_whole(size_t group) const {
  const Groups& groups = block_.groups;
  const uint64_t band = bands_.first + (first_group_ + group) / bands_.columns;
  const uint64_t items = uint64_t{groups.height} * groups.row;
  return groups.height != kAllItems && groups.width != kAllItems && band * items >= block_.first &&
         (band + 1) * items <= block_.first + block_.n;
}

bool Section::is_zero(size_t group) const {
  return all_runs(group, [&](size_t offset, size_t length) {
    const float* const values = values_ + offset;
    return std::all_of(values, values + length,
                       [](float value) { return std::bit_cast<uint32_t>(value) == 0; });
  });
}

void Section::set_codes(size_t group, const uint32_t* codes) {
  for_runs(group, [&](size_t offset, size_t length) {
    std::copy_n(codes, length, codes_ + offset);
    codes += length;
  });
}

void Section::append(const float* scales, unsigned low_bits, Codes& codes) const {
  const auto append_run = [&](size_t offset, size_t length) {
    kernels().quantized->split_codes(codes_ + offset, length, low_bits,
                                     {codes.symbols + codes.count, codes.low + codes.count});
    codes.count += length;
  };
  const bool is_all = std::find(scales, scales + groups_, 0.0f) == scales + groups_;
  const size_t n = end_ - begin_;
  if (is_all && (has_columns_ || size_ == n)) return append_run(before_, n);
  const size_t width = block_.layout.planes();
  const uint8_t* items = block_.items + width * begin_;
  const auto append = [&](size_t group, size_t offset, size_t length) {
    const uint8_t* const end = items + width * length;
    if (scales[group] != 0) {
      append_run(offset, length);
    } else {
      codes.plain.insert(codes.plain.end(), items, end);
    }
    items = end;
  };
  for (const GroupRun& run : runs_) append(run.group, run.offset, run.length);
  if (has_columns_) {
    for (size_t i = before_; i < before_ + n; ++i) append(i % groups_, i, 1);
  }
}

}  // namespace bf16codecs::quantized
