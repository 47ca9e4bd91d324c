#pragma once

// Scales of items, from their rows and columns (docs/format_tiles.md, "Scales").

#include "cuda/job.h"
#include "cuda/warp.h"
#include "grid/adaptive_integer.h"

namespace bf16codecs::cuda {

inline constexpr int kMostRowClass = 2047;  // of either sign

// Decoder of a block's row classes; one thread decodes them when they are needed. And the row
// scales of a step that has several rows.
template <unsigned kItems>
struct RowMemory {
  grid::SideDecoder decoder;
  grid::AdaptiveInteger integer;
  Shared<4> number;
  Shared<4 * kItems> scales;
};

// The scales of consecutive steps of kItems items.
template <unsigned kItems>
class Scales {
 public:
  using Memory = RowMemory<kItems>;

  BF16CODECS_DEVICE Scales(const Warp& warp, Memory& memory, const Section& section,
                           const uint8_t* rows, uint32_t rows_size, uint64_t first)
      : warp_(warp),
        memory_(memory),
        row_length_(warp.same(section.row_length)),
        period_(warp.same(section.period)),
        columns_(reinterpret_cast<const int16_t*>(warp.same(section.columns))),
        most_(warp.same(section.most)),
        row_step_(warp.same(section.row_step)),
        column_step_(warp.same(section.column_step)) {
    warp.once([&] {
      memory_.decoder = grid::SideDecoder(rows, rows_size);
      memory_.integer = grid::AdaptiveInteger();
    });
    base_ = warp.same(section.base) + next_number();
    // The offset does not train the model of the row classes.
    warp.once([&] { memory_.integer = grid::AdaptiveInteger(); });
    row_ = base_;
    if (period_ != 0) column_ = warp.same(static_cast<uint32_t>(first % period_));
    if (row_length_ == 0) return;
    next_row();
    row_left_ -= warp.same(static_cast<uint32_t>(first % row_length_));
  }

  // Goes to the first step, or to the next one.
  BF16CODECS_DEVICE void next_step() {
    is_one_row_ = row_left_ >= kItems;
    if (is_one_row_) {
      if (row_length_ != 0) row_left_ -= kItems;
      return;
    }
    warp_.sync();
    BF16CODECS_ROLLED
    for (unsigned done = 0; done < kItems;) {
      const unsigned end = done + take_row(kItems - done);
      BF16CODECS_ROLLED
      for (; done < end; done += least(kThreads, end - done)) {
        warp_.each([&](unsigned t) {
          if (done + t < end) memory_.scales.store(4 * (done + t), row_);
        });
      }
    }
    warp_.sync();
  }

  // Thread t gets the scale of an item: of number `first` + item(t) in the step. Calls are in the
  // order of the items, 32 of them at a time.
  template <typename Function>
  BF16CODECS_DEVICE PerThread<int> next(unsigned first, Function item) {
    PerThread<int> scales;
    warp_.each([&](unsigned t) {
      const int row = is_one_row_ ? row_ : memory_.scales.template load<int>(4 * (first + item(t)));
      scales[t] = clamp(row, 0, most_);
    });
    if (period_ == 0) return scales;
    warp_.each([&](unsigned t) {
      uint32_t column = column_ + item(t);
      while (column >= period_) column -= period_;
      const int class_scale = columns_[column] * (1 << column_step_);
      scales[t] = clamp(scales[t] + class_scale, 0, most_);
    });
    column_ += kThreads;
    while (column_ >= period_) column_ -= period_;
    return scales;
  }

  // Decodes the rows of the items after the last step; returns whether all row classes are in
  // range.
  BF16CODECS_DEVICE bool finish(uint32_t rest) {
    BF16CODECS_ROLLED
    while (rest != 0) rest -= take_row(rest);
    return is_sound_;
  }

 private:
  // Takes up to `most` items of the current row; returns how many.
  BF16CODECS_DEVICE uint32_t take_row(uint32_t most) {
    if (row_left_ == 0) next_row();
    const uint32_t taken = least(most, row_left_);
    if (row_length_ != 0) row_left_ -= taken;
    return taken;
  }

  BF16CODECS_DEVICE void next_row() {
    const int number = next_number();
    is_sound_ &= number >= -kMostRowClass && number <= kMostRowClass;
    row_ = base_ + number * (1 << row_step_);
    row_left_ = row_length_;
  }

  BF16CODECS_DEVICE int next_number() {
    warp_.sync();
    warp_.once([&] { memory_.number.store(0, memory_.integer.get(memory_.decoder)); });
    warp_.sync();
    return warp_.same(memory_.number.template load<int>(0));
  }

  const Warp& warp_;
  Memory& memory_;
  const uint32_t row_length_, period_;
  const int16_t* const columns_;
  const int most_;
  const unsigned row_step_, column_step_;
  int base_, row_;
  uint32_t row_left_ = ~0u;  // items left in the row; unlimited if all are in one row
  uint32_t column_ = 0;
  bool is_one_row_ = true;  // the step
  bool is_sound_ = true;
};

}  // namespace bf16codecs::cuda
