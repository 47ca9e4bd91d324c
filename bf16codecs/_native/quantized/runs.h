#pragma once

// The items of a block as runs of consecutive items of one group.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "quantized/format.h"

namespace bf16codecs::quantized {

struct Run {
  size_t length;  // 0 at the end
  size_t group;   // counted in the block's bands
};

// Runs of consecutive groups.
struct EqualRuns {
  size_t length, count;
  size_t group;  // of the first
};

class Runs {
 public:
  // Of n items from `first` on.
  Runs(const Groups& groups, uint64_t first, size_t n);

  // The next run, or as much of it as has at most `most` items.
  Run next(size_t most);

  // The next run, and with it those of the groups behind it in its row that are as long: if there
  // are scales, up to the first that is 0. There must be one.
  EqualRuns next_runs(const float* scales, size_t most);

  // The next n items' scales.
  void expand(const float* scales, size_t n, float* out);

 private:
  void next_row();

  Groups groups_;
  size_t columns_;
  size_t left_;
  uint32_t column_, row_;             // of the next item; the row counted in its band
  uint32_t group_column_, in_group_;  // the item's group in its band, and its column in the group
  size_t band_ = 0;                   // the number of the band's first group
};

inline EqualRuns Runs::next_runs(const float* scales, size_t most) {
  const size_t in_row = groups_.row - column_, width = groups_.width;
  size_t whole = in_group_ == 0 ? std::min({in_row, left_, most}) / width : 0;
  if (scales != nullptr) {
    const float* const first = scales + band_ + group_column_;
    whole = static_cast<size_t>(std::find(first, first + whole, 0.0f) - first);
  }
  if (whole < 2) {
    const Run run = next(most);
    return {run.length, 1, run.group};
  }
  const EqualRuns runs{width, whole, band_ + group_column_};
  left_ -= whole * width;
  column_ += static_cast<uint32_t>(whole * width);
  group_column_ += static_cast<uint32_t>(whole);
  if (column_ == groups_.row) next_row();
  return runs;
}

inline Run Runs::next(size_t most) {
  const size_t in_row = std::min(groups_.width - in_group_, groups_.row - column_);
  const size_t length = std::min({in_row, left_, most});
  const Run run{length, band_ + group_column_};
  left_ -= length;
  column_ += static_cast<uint32_t>(length);
  in_group_ += static_cast<uint32_t>(length);
  if (column_ == groups_.row) {
    next_row();
  } else if (in_group_ == groups_.width) {
    in_group_ = 0;
    ++group_column_;
  }
  return run;
}

}  // namespace bf16codecs::quantized
