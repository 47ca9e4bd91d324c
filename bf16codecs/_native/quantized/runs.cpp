#include "quantized/runs.h"

#include <algorithm>

#include "kernels/kernels.h"

namespace bf16codecs::quantized {
namespace {

// In runs of at least this many items, wide vectors save more than a call takes.
constexpr size_t kLongRun = 64;

}  // namespace

Runs::Runs(const Groups& groups, uint64_t first, size_t n)
    : groups_(groups),
      columns_(static_cast<size_t>(Bands(groups, first, n).columns)),
      left_(n),
      column_(static_cast<uint32_t>(first % groups.row)),
      row_(static_cast<uint32_t>(first / groups.row % groups.height)),
      group_column_(column_ / groups.width),
      in_group_(column_ % groups.width) {
  // Rows of whole groups that are one row high are like one long row.
  const bool is_flat = groups.height == 1 && groups.row % groups.width == 0;
  if (is_flat && n <= UINT32_MAX - column_) groups_.row = UINT32_MAX;
}

void Runs::next_row() {
  column_ = group_column_ = in_group_ = 0;
  if (++row_ < groups_.height) return;
  row_ = 0;
  band_ += columns_;
}

void Runs::expand(const float* scales, size_t n, float* out) {
  while (n != 0) {
    if (groups_.width == 1 && groups_.row > 1) {  // a column each: copied up to the row's end
      const size_t length = std::min<size_t>(n, groups_.row - column_);
      std::copy_n(scales + band_ + column_, length, out);
      left_ -= length, n -= length, out += length;
      column_ += static_cast<uint32_t>(length);
      group_column_ = column_;
      if (column_ == groups_.row) next_row();
      continue;
    }
    const Run run = next(n);
    const float scale = scales[run.group];
    if (run.length < kLongRun) {
      std::fill_n(out, run.length, scale);
    } else {
      kernels().quantized->fill(scale, run.length, out);
    }
    n -= run.length, out += run.length;
  }
}

}  // namespace bf16codecs::quantized
