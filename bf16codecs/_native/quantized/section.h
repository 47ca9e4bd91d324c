#pragma once

// A block's groups, a few at a time: their values, and their codes once they are found.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quantized/format.h"
#include "quantized/runs.h"
#include "workspace.h"

namespace bf16codecs::quantized {

// As many values and their codes, of 4 bytes each, stay in the first-level cache.
inline constexpr size_t kSectionValues = 2048;

// The length that a run of values is made up to.
inline size_t padded(size_t length) {
  return (length + kRunUnit - 1) / kRunUnit * kRunUnit;
}

// The items of a block, and how they are grouped.
struct Block {
  const Layout& layout;
  const Groups& groups;
  uint64_t first;  // the first item's number
  const uint8_t* items;
  size_t n;
};

// The codes of a block, and the items that have none.
struct Codes {
  uint8_t *symbols, *low;  // of all items
  size_t count;
  std::vector<uint8_t> plain;
};

// Whole groups, as far as the block has them: those of a band or, of groups in one row each, as
// many as fit in the cache. They are counted from the section's first one.
class Section {
 public:
  Section(const Block& block, Scratch& scratch);

  // Goes on to the next section, and loads its values. Returns false at the end.
  bool next();

  size_t first_group() const { return first_group_; }
  size_t groups() const { return groups_; }
  GroupedValues values() const;
  FoundCodes codes() const { return {codes_, levels_}; }

  // Copies the values of a group.
  void collect(size_t group, std::vector<float>& values) const;
  // Whether the block has all of a group.
  bool is_whole(size_t group) const;
  // Whether all items of a group are positive zeros.
  bool is_zero(size_t group) const;
  void set_codes(size_t group, const uint32_t* codes);

  // Appends the codes of groups with a scale, and the items of the others.
  void append(const float* scales, unsigned low_bits, Codes& codes) const;

 private:
  void take_groups();
  void take_band();
  void add(const Run& run);
  void load();
  // Calls function(offset of values, length) for each run of a group; for all_runs(), it says
  // whether to go on, and all_runs() whether it did so to the end.
  template <typename Function>
  bool all_runs(size_t group, Function function) const;
  template <typename Function>
  void for_runs(size_t group, Function function) const;

  const Block& block_;
  Scratch& scratch_;
  Bands bands_;
  Runs next_;
  bool has_columns_;            // each column is a group: there are no runs, but whole rows
  size_t begin_ = 0, end_ = 0;  // items
  size_t first_group_ = 0, groups_ = 0;
  std::vector<GroupRun> runs_;
  size_t size_ = 0;    // of all values, with those that are added to runs and rows
  size_t before_ = 0;  // values that are added to the first row
  float *values_ = nullptr, *levels_ = nullptr;
  uint32_t* codes_ = nullptr;
};

}  // namespace bf16codecs::quantized
