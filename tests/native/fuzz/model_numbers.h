#pragma once

#include "core.h"
#include "grid/adaptive_coder.h"
#include "grid/grid.h"

namespace bf16codecs::fuzz {

// Writes numbers of models that have grids (docs/format_scale.md, "The scale model"), most of them
// within their limits. One that is not is enough for a decoder to refuse the model.
//
// The numbers are coded here: in the bits of an adaptive coder, no mutation of a fuzzer would
// change one number alone.
class NumberWriter {
 public:
  // So many numbers before `wild`, counted from 1, keep their limits; 0: all do.
  NumberWriter(Reader& in, int max_scale, unsigned wild)
      : in_(in), max_scale_(max_scale), wild_(wild) {}

  // Reduces a number to its limits, unless it is the wild one.
  void put(grid::AdaptiveInteger& model, int value, int least, int most);
  // Puts one of two numbers: the second is for the wild one.
  void put_or(grid::AdaptiveInteger& model, int value, int wild);
  void put(grid::AdaptiveBit& model, bool bit) { coder_.put(model, bit); }

  // Puts the head of a grid from the input; returns its period.
  uint32_t put_grid_head();
  // Puts its columns, unless the period is 0.
  void put_columns(uint32_t period);

  std::vector<uint8_t> finish() { return coder_.finish(); }

 private:
  uint32_t read_period();
  void put_length(uint32_t length);

  Reader& in_;
  int max_scale_;
  unsigned wild_;
  grid::SideEncoder coder_;
  grid::GridIntegers integers_;
};

// Bytes that a payload may take beyond 10 an item: scales of rows, and first states.
inline constexpr size_t kPayloadSlack = size_t{1} << 16;

// Scales of the rows of a block, from the input: the larger `shift`, the closer to each other.
grid::RowScales read_rows(Reader& in, unsigned shift, bool has_offset, size_t n);

// Changes bits of a payload, mostly of the fields at its front, or the size.
void damage(Bytes& payload, unsigned n, test::Random& random);

}  // namespace bf16codecs::fuzz
