#pragma once

#include "delta/model.h"
#include "grid/grid.h"
#include "model_numbers.h"

namespace bf16codecs::fuzz {

// Writes a difference model's numbers (docs/format_differences.md, "The difference model"), from an
// input.
class DifferenceModelWriter {
 public:
  DifferenceModelWriter(Reader& in, const Layout& layout);

  void put_section();
  std::vector<uint8_t> finish() { return numbers_.finish(); }

 private:
  unsigned put_places();
  void put_class(bool is_near);
  int weight(unsigned entry, unsigned kind);

  Reader& in_;
  Layout layout_;
  NumberWriter numbers_;
  test::Random random_;
  grid::AdaptiveInteger range_, place_, raw_, frequency_;
  grid::AdaptiveBit next_;
  int raw_before_ = 0, first_before_ = 0;
};

}  // namespace bf16codecs::fuzz
