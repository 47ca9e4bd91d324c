#pragma once

// The scales and offsets of a section's groups, all at once: of whole groups whose least value and
// largest one have as many levels between them as usual, or a few less. Others are left to
// OffsetFinder.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quantized/kinds.h"
#include "quantized/scales.h"
#include "quantized/section.h"
#include "quantized/super_blocks.h"
#include "workspace.h"

namespace bf16codecs::quantized {

class LinesTogether {
 public:
  LinesTogether(const Found& found, Precision precision, const Block& block);

  // Finds the scales, offsets and codes of a section's groups; both numbers of the others are 0.
  void find(Section& section, float* scales, float* offsets);

  // Which of the block's super-blocks have such numbers; empty if there are none.
  const std::vector<bool>& super_blocks() const { return super_blocks_; }

 private:
  // A super-block: its units are tried, and with one, those of the offsets.
  struct SuperBlock {
    Units scales, offsets;
    bool is_left = true, has_scales = false;
  };

  void arrange(const Section& section);
  void find_super_blocks(size_t first);
  Units units_of(const float* low, const float* high) const;
  bool next_scales();
  void bound_offsets();
  bool next_offsets();
  void accept_blocks(size_t first);
  void find_short_sums();
  void find_sums();
  void find_differences();
  void try_number(const float* low, const float* high, size_t k, float* numbers);
  void accept(bool are_short);
  bool is_done() const { return left_ == 0; }

  const Kind& kind_;
  Precision precision_;
  uint32_t length_;               // of a group
  size_t levels_;                 // rows of the table
  std::vector<InnerKind> inner_;  // of super-blocks that there may be
  std::vector<bool> super_blocks_;
  Scratch memory_;
  LineGroups lines_ = {};
  bool may_be_short_;            // whether scales and offsets may be of binary16
  size_t count_ = 0, left_ = 0;  // groups, and those that have no line yet
  std::vector<ScaleAndOffset> found_;
  std::vector<SuperBlock> blocks_;
  std::vector<float> lows_, highs_;  // of parts of intervals
};

}  // namespace bf16codecs::quantized
