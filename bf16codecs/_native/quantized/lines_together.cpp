#include "quantized/lines_together.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/kernels.h"
#include "quantized/shape.h"

namespace bf16codecs::quantized {
namespace {

static_assert(kSectionValues % kSuperBlockItems == 0, "a section begins with a super-block");

// Groups of more items have few beside them.
constexpr uint32_t kMostItems = 512;
// Numbers of an interval of scales, and of one of offsets, that are tried: of HQQ's groups in
// bfloat16, 97 % have the first scale, and 0.4 % none. Those of binary16 have few, and all are
// tried.
constexpr size_t kScales = 3, kOffsets = 3, kMostScales = 5;

// Zeros on either side of the likely one.
constexpr int kZeros = 2;

// Whether a number has as few bits as those of binary16.
bool is_short(float number) {
  return (std::bit_cast<uint32_t>(number) & 0x1FFF) == 0;
}

// How many levels most groups have: as many as samples had.
size_t usual_levels(const Found& found) {
  const auto most = static_cast<size_t>(found.kind.tops.front()) + 1;
  switch (found.grid.label) {
    case Label::ternary:
    case Label::int2:
      return 4;
    case Label::int3:
      return 8;
    case Label::int4:
      return std::min<size_t>(most, 16);
    default:
      return most;
  }
}

// Rows of an array of numbers for each group, one after the other.
LineGroups lines_in(Scratch& scratch, size_t length, size_t groups) {
  constexpr size_t kLine = 64;
  uint8_t* memory = scratch.at_least((length + kLineNumbers) * sizeof(float) * groups + kLine);
  memory += -reinterpret_cast<uintptr_t>(memory) % kLine;
  const auto next = [&]<typename T>(T*& numbers, size_t rows) {
    numbers = reinterpret_cast<T*>(memory);
    memory += sizeof(T) * groups * rows;
  };
  LineGroups of{};
  of.length = length, of.groups = groups;
  next(of.least, 1), next(of.inverse, 1);
  next(of.table, kLineLevels), next(of.low, kLineLevels), next(of.high, kLineLevels);
  next(of.scale_low, 1), next(of.scale_high, 1), next(of.offset_low, 1), next(of.offset_high, 1);
  next(of.scale, 1), next(of.offset, 1), next(of.wrong, 1);
  of.values = reinterpret_cast<const float*>(memory);
  return of;
}

}  // namespace

LinesTogether::LinesTogether(const Found& found, Precision precision, const Block& block)
    : kind_(found.kind),
      precision_(precision),
      length_(block.groups.height == 1 ? block.groups.width : 0),
      levels_(usual_levels(found)),
      inner_(inner_kinds_of(found.kind, precision, block)),
      may_be_short_(precision == Precision::binary16) {
  // Bounds are numbers of binary32.
  if (length_ > kMostItems || precision == Precision::binary32) length_ = 0;
  if (length_ != 0 && !inner_.empty()) super_blocks_.resize(block.n / kSuperBlockItems);
}

void LinesTogether::find(Section& section, float* scales, float* offsets) {
  const size_t groups = section.groups();
  std::fill_n(scales, groups, 0.0f);
  std::fill_n(offsets, groups, 0.0f);
  const GroupedValues values = section.values();
  const auto is_whole = [this](const GroupRun& run) { return run.length == length_; };
  if (length_ == 0 || values.n_runs != groups ||
      !std::all_of(values.runs, values.runs + groups, is_whole))
    return;
  arrange(section);
  if (!inner_.empty()) find_super_blocks(section.first_group());
  const bool is_difference = kind_.levels.formula == Formula::difference;
  if (!is_done() && is_difference) find_differences();
  if (!is_done() && !is_difference) find_sums();
  for (size_t g = 0; g < groups; ++g) {
    lines_.scale[g] = found_[g].scale, lines_.offset[g] = found_[g].offset;
  }
  kernels().quantized->quantize_lines(kind_.levels, precision_, values.values, values.runs, groups,
                                      lines_, section.codes().codes);
  for (size_t g = 0; g < groups; ++g) {
    if (lines_.wrong[g] == 0 && found_[g].scale != 0) {
      scales[g] = found_[g].scale, offsets[g] = found_[g].offset;
    } else if (!super_blocks_.empty()) {  // of two values with one level, the table has one
      const size_t block = (section.first_group() + g) / inner_[0].width;
      if (block < super_blocks_.size()) super_blocks_[block] = false;
    }
  }
}

void LinesTogether::arrange(const Section& section) {
  const GroupedValues values = section.values();
  count_ = values.groups;
  lines_ = lines_in(memory_, length_, padded(count_));
  lines_.first = static_cast<float>(kind_.first);
  auto* const transposed = const_cast<float*>(lines_.values);
  const QuantizedKernels& kernel = *kernels().quantized;
  kernel.transpose_runs(values.values, values.runs, count_, lines_.groups, length_, transposed);
  kernel.find_line_levels(static_cast<float>(levels_ - 1), lines_);
  found_.assign(lines_.groups, {});
  // All groups are always tried, those that are done or not there as well.
  std::fill_n(lines_.scale, lines_.groups, 0.0f);
  std::fill_n(lines_.offset, lines_.groups, 0.0f);
  left_ = count_ - static_cast<size_t>(std::count(lines_.inverse, lines_.inverse + count_, 0.0f));
  lows_.resize(lines_.groups), highs_.resize(lines_.groups);
  kernel.bound_scales(kind_.levels.formula, precision_, levels_, lines_);
}

// The simplest number of each interval (try 0), then numbers of the precision that libraries
// multiply out in, and where there are none, the simplest of each part.
void LinesTogether::try_number(const float* low, const float* high, size_t k, float* numbers) {
  const QuantizedKernels& kernel = *kernels().quantized;
  if (k == 0) return kernel.find_simplest(low, high, lines_.groups, numbers);
  constexpr float kShare = 0.25f;
  const float before = static_cast<float>(k - 1);
  for (size_t g = 0; g < lines_.groups; ++g) {
    const float size = high[g] - low[g];
    lows_[g] = low[g] + size * (before * kShare), highs_[g] = lows_[g] + size * kShare;
  }
  kernel.find_simplest(lows_.data(), highs_.data(), lines_.groups, numbers);
  const Shape shape = shape_of(half(precision_));
  for (size_t g = 0; g < count_; ++g) {
    if (found_[g].scale != 0 || !(low[g] <= high[g])) continue;
    const double step = shape.step(std::max(std::fabs(low[g]), std::fabs(high[g])));
    const double number = (std::ceil(low[g] / step) + before) * step;
    if (number <= high[g]) numbers[g] = static_cast<float>(number);
  }
}

// Keeps the numbers of groups that had none, if they are right and, if they have to be `short`, of
// binary16.
void LinesTogether::accept(bool are_short) {
  const Formula formula = kind_.levels.formula;
  kernels().quantized->check_lines(formula, precision_, levels_, lines_);
  for (size_t g = 0; g < count_; ++g) {
    const float scale = lines_.scale[g], offset = lines_.offset[g];
    if (lines_.wrong[g] != 0 || found_[g].scale != 0) continue;
    if (are_short && (!is_short(scale) || !is_short(offset))) continue;
    if (scale == 0 || !are_within(formula, scale, offset)) continue;
    found_[g] = {scale, offset};
    --left_;
  }
}

// Puts the next scales of super-blocks that have no numbers; returns whether there are any.
bool LinesTogether::next_scales() {
  const size_t width = inner_[0].width;
  bool has_any = false;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    SuperBlock& block = blocks_[b];
    block.has_scales = block.is_left && block.scales.next(lines_.scale + b * width);
    block.is_left = block.has_scales;
    has_any = has_any || block.is_left;
  }
  return has_any;
}

// Finds the units of the offsets that go with the scales.
void LinesTogether::bound_offsets() {
  kernels().quantized->bound_lines(kind_.levels.formula, precision_, levels_, lines_);
  const size_t width = inner_[0].width;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    if (!blocks_[b].has_scales) continue;
    blocks_[b].offsets = units_of(lines_.offset_low + b * width, lines_.offset_high + b * width);
  }
}

bool LinesTogether::next_offsets() {
  bool has_any = false;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    SuperBlock& block = blocks_[b];
    block.has_scales = block.has_scales && block.offsets.next(lines_.offset + b * inner_[0].width);
    has_any = has_any || block.has_scales;
  }
  return has_any;
}

// Keeps the numbers of super-blocks that are all right.
void LinesTogether::accept_blocks(size_t first) {
  const Formula formula = kind_.levels.formula;
  kernels().quantized->check_lines(formula, precision_, levels_, lines_);
  const size_t width = inner_[0].width;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    const size_t begin = b * width, end = begin + width;
    bool is_right = blocks_[b].has_scales;
    for (size_t g = begin; g < end && is_right; ++g)
      is_right = lines_.wrong[g] == 0 && lines_.scale[g] != 0 &&
                 are_within(formula, lines_.scale[g], lines_.offset[g]);
    if (!is_right) continue;
    blocks_[b].is_left = blocks_[b].has_scales = false;
    super_blocks_[first / width + b] = true;
    for (size_t g = begin; g < end; ++g) found_[g] = {lines_.scale[g], lines_.offset[g]};
    left_ -= width;
  }
}

// `first` is the number of the section's first group in the block.
void LinesTogether::find_super_blocks(size_t first) {
  const size_t width = inner_[0].width, count = count_ / width;
  blocks_.assign(count, {});
  for (size_t b = 0; b < count; ++b)
    blocks_[b].scales = units_of(lines_.scale_low + b * width, lines_.scale_high + b * width);
  while (next_scales()) {
    bound_offsets();
    while (next_offsets()) accept_blocks(first);
  }
  if (first != 0) return;
  // The first few tell whether there are any.
  const auto found = static_cast<size_t>(std::count(
      super_blocks_.begin(), super_blocks_.begin() + static_cast<ptrdiff_t>(count), true));
  for (size_t g = 0; g < count_; ++g) lows_[g] = found_[g].scale;
  if (2 * found >= count && do_differ(lows_.data(), count_)) return;
  inner_.clear();
  super_blocks_.clear();
  for (ScaleAndOffset& numbers : found_) left_ += numbers.scale != 0 ? 1 : 0;
  found_.assign(found_.size(), {});
}

Units LinesTogether::units_of(const float* low, const float* high) const {
  const InnerKind& inner = inner_[0];
  Range ranges[kSuperBlockGroups];
  for (size_t g = 0; g < inner.width; ++g) ranges[g] = {low[g], high[g]};
  return {ranges, inner.width, inner.kind.tops.front()};
}

// Values of binary16 leave few scales and offsets. If one of these scales is of binary16, and so is
// an offset that goes with it, its simplest offset is, too.
void LinesTogether::find_short_sums() {
  const size_t before = left_;
  for (size_t k = 0; k < kMostScales && !is_done(); ++k) {
    try_number(lines_.scale_low, lines_.scale_high, k, lines_.scale);
    kernels().quantized->bound_lines(kind_.levels.formula, precision_, levels_, lines_);
    try_number(lines_.offset_low, lines_.offset_high, 0, lines_.offset);
    accept(true);
  }
  may_be_short_ = 4 * left_ < before;
}

void LinesTogether::find_sums() {
  if (may_be_short_) find_short_sums();
  for (size_t k = 0; k < kScales && !is_done(); ++k) {
    try_number(lines_.scale_low, lines_.scale_high, k, lines_.scale);
    kernels().quantized->bound_lines(kind_.levels.formula, precision_, levels_, lines_);
    for (size_t j = 0; j < kOffsets && !is_done(); ++j) {
      try_number(lines_.offset_low, lines_.offset_high, j, lines_.offset);
      accept(false);
    }
  }
}

void LinesTogether::find_differences() {
  const QuantizedKernels& kernel = *kernels().quantized;
  kernel.find_zeros(precision_, levels_, lines_);
  for (int k = 0; k <= 2 * kZeros && !is_done(); ++k) {
    const auto steps = static_cast<float>(k % 2 == 0 ? -k / 2 : (k + 1) / 2);
    for (size_t g = 0; g < lines_.groups; ++g)
      lines_.offset[g] = lines_.offset_low[g] + steps * lines_.offset_high[g];
    kernel.bound_lines(kind_.levels.formula, precision_, levels_, lines_);
    for (size_t j = 0; j < kMostScales && !is_done(); ++j) {
      try_number(lines_.scale_low, lines_.scale_high, j, lines_.scale);
      accept(false);
    }
  }
}

}  // namespace bf16codecs::quantized
