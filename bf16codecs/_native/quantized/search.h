#pragma once

// The scales of a section's groups: of all at once, with what is usual. Groups that are not usual
// are tried one by one, with other levels of their largest or smallest magnitude, and in the end by
// ScaleFinder.

#include <cstddef>
#include <vector>

#include "quantized/scales.h"
#include "quantized/section.h"
#include "workspace.h"

namespace bf16codecs::quantized {

class Search {
 public:
  Search(const Kind& kind, Precision precision, size_t& failures);

  // Finds the scales and codes of a section's groups; the scales of those that have none are 0.
  void find(Section& section, float* scales);

 private:
  static constexpr Guess kLeastIsOne{true, 1};

  void learn(const GroupNumbers& numbers, const float* scales, size_t groups);
  void find_together(Section& section, const GroupNumbers& numbers);
  void search_columns(Section& section, const GroupNumbers& numbers);
  bool is_usual(const GroupNumbers& numbers, size_t group, float level) const;
  void start(const Guess& guess, size_t groups, const GroupNumbers& numbers) const;
  float find_alone(Section& section, size_t group, const GroupNumbers& numbers);
  float try_guess(const Guess& guess, const GroupNumbers& numbers, size_t group);
  float find_slowly(Section& section, size_t group);
  std::vector<Guess> other_guesses() const;

  const Kind& kind_;
  Precision precision_;
  float error_;       // relative, of values
  size_t& failures_;  // searches in vain that are left
  ScaleFinder finder_;
  bool is_narrow_;
  bool may_have_one_;                   // whether levels are integers
  bool is_together_ = true;             // whether all groups are tried at once
  Guess usual_;                         // that all groups are tried with
  Scratch all_, one_;                   // numbers of groups
  std::vector<float> values_, levels_;  // of a group alone
  std::vector<uint32_t> codes_;
};

}  // namespace bf16codecs::quantized
