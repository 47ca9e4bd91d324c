#pragma once

// The super-blocks of GGUF's K-quants: 256 items whose 8 or 16 scales, and offsets, are integers
// times a number of binary16. Each group's items leave a range of scales; of these, the ones of
// such a super-block take half as many bits.

#include <cstddef>
#include <vector>

#include "quantized/find.h"
#include "quantized/kinds.h"
#include "quantized/ranges.h"
#include "quantized/section.h"

namespace bf16codecs::quantized {

inline constexpr size_t kSuperBlockItems = 256, kSuperBlockGroups = 16;  // of these, at most

// The kinds of numbers that groups of a block may have in super-blocks, the likely one first.
std::vector<InnerKind> inner_kinds_of(const Kind& kind, Precision precision, const Block& block);

// Whether the scales of some groups differ: powers of two, as MXFP4 has, take fewer bits as they
// are.
bool do_differ(const float* scales, size_t n);

// Integers times a number of binary16, the unit, one in each of some ranges. The largest integer is
// that of the kind, as llama.cpp chooses it.
class Units {
 public:
  Units() = default;
  Units(const Range* ranges, size_t n, double most);

  // Finds the next unit, and the numbers; returns false if there is none.
  bool next(float* numbers);

 private:
  bool fit(float* numbers) const;

  size_t n_ = 0;  // ranges
  int left_ = 0;  // units
  double unit_ = 0, step_ = 0, most_ = 0, end_ = 0;
  Range ranges_[kSuperBlockGroups];
};

// Replaces the scales, offsets and codes of a block's groups, if they can be those of super-blocks;
// but not of those that are `done`, if it says so of each.
void find_super_blocks(const Found& found, Precision precision, const Block& block,
                       const std::vector<bool>& done, float* scales, float* offsets, Codes& codes);

}  // namespace bf16codecs::quantized
