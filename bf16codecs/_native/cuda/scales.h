#pragma once

// Scales of items, from their rows and columns (docs/format_tiles.md, "Scales").

#include "cuda/job.h"
#include "cuda/warp.h"
#include "grid/adaptive_integer.h"

namespace bf16codecs::cuda {

inline constexpr int kMostRowClass = 2047;  // of either sign

// Decoder of a block's row classes; one thread decodes them when they are needed.
struct RowMemory {
  grid::SideDecoder decoder;
  grid::AdaptiveInteger integer;
  Shared<4> number;
};

// The scales of consecutive steps of 32 items.
class Scales {
 public:
  BF16CODECS_DEVICE Scales(const Warp& warp, RowMemory& memory, const Section& section,
                           const uint8_t* rows, uint32_t rows_size, uint64_t first)
      : warp_(warp),
        memory_(memory),
        section_(section),
        row_length_(warp.same(section.row_length)),
        period_(warp.same(section.period)) {
    warp.once([&] {
      memory_.decoder = grid::SideDecoder(rows, rows_size);
      memory_.integer = grid::AdaptiveInteger();
    });
    offset_ = next_number();
    // The offset does not train the model of the row classes.
    warp.once([&] { memory_.integer = grid::AdaptiveInteger(); });
    row_ = section.base + offset_;
    if (period_ != 0) column_ = warp.same(static_cast<uint32_t>(first % period_));
    if (row_length_ == 0) return;
    next_row();
    row_left_ = row_length_ - warp.same(static_cast<uint32_t>(first % row_length_));
  }

  // Thread t gets the scale of item t of the step.
  BF16CODECS_DEVICE PerThread<int> next() {
    int rows[kMostRows];
    uint32_t ends[kMostRows];
    uint32_t begin = 0;
    BF16CODECS_UNROLLED
    for (unsigned i = 0; i < kMostRows; ++i) {
      begin += take_row(kThreads - begin);
      rows[i] = row_;
      ends[i] = begin;
    }
    PerThread<int> scales;
    warp_.each([&](unsigned t) {
      const int row = t < ends[0] ? rows[0] : t < ends[1] ? rows[1] : rows[2];
      scales[t] = clamp(row, 0, section_.most);
      if (period_ == 0) return;
      uint32_t column = column_ + t;
      while (column >= period_) column -= period_;
      const auto* const columns = reinterpret_cast<const int16_t*>(section_.columns);
      const int class_scale = columns[column] * (1 << section_.column_step);
      scales[t] = clamp(scales[t] + class_scale, 0, section_.most);
    });
    if (period_ != 0) column_ = (column_ + kThreads) % period_;
    return scales;
  }

  // Decodes the rows of the items after the last step; returns whether all row classes are in
  // range.
  BF16CODECS_DEVICE bool finish(uint32_t rest) {
    while (rest != 0) rest -= take_row(rest);
    return is_sound_;
  }

 private:
  static constexpr unsigned kMostRows = 3;  // in a step, since rows have at least 16 items

  // Takes up to `most` items of the current row; returns how many.
  BF16CODECS_DEVICE uint32_t take_row(uint32_t most) {
    if (most == 0) return 0;
    if (row_left_ == 0) {
      next_row();
      row_left_ = row_length_;
    }
    const uint32_t taken = least(most, row_left_);
    if (row_length_ != 0) row_left_ -= taken;
    return taken;
  }

  BF16CODECS_DEVICE void next_row() {
    const int number = next_number();
    is_sound_ &= number >= -kMostRowClass && number <= kMostRowClass;
    row_ = section_.base + offset_ + number * (1 << section_.row_step);
  }

  BF16CODECS_DEVICE int next_number() {
    warp_.sync();
    warp_.once([&] { memory_.number.store(0, memory_.integer.get(memory_.decoder)); });
    warp_.sync();
    return warp_.same(memory_.number.template load<int>(0));
  }

  const Warp& warp_;
  RowMemory& memory_;
  const Section& section_;
  const uint32_t row_length_, period_;
  int offset_, row_;
  uint32_t row_left_ = ~0u;  // items left in the row; unlimited if all are in one row
  uint32_t column_ = 0;
  bool is_sound_ = true;
};

}  // namespace bf16codecs::cuda
