#include "quantized/search.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/kernels.h"
#include "quantized/codes.h"

namespace bf16codecs::quantized {
namespace {

// The share of its interval up to which an integer is known: the rounding of the value itself takes
// as much again, and the half is the middle of two.
constexpr float kNarrow = 0.2f;

float float_of(int32_t bits) {
  return std::bit_cast<float>(bits);
}
int32_t bits_of(float x) {
  return std::bit_cast<int32_t>(x);
}

GroupNumbers numbers_in(Scratch& scratch, size_t groups) {
  uint8_t* memory = scratch.at_least(kGroupNumbers * sizeof(float) * groups);
  const auto next = [&]<typename T>(T*& numbers) {
    numbers = reinterpret_cast<T*>(memory);
    memory += sizeof(T) * groups;
  };
  GroupNumbers numbers;
  next(numbers.most), next(numbers.least), next(numbers.balance);
  next(numbers.low), next(numbers.high), next(numbers.inverse), next(numbers.spread);
  next(numbers.scale), next(numbers.codes);
  return numbers;
}

float most_of(const GroupNumbers& numbers, size_t group) {
  return float_of(numbers.most[group]);
}
float least_of(const GroupNumbers& numbers, size_t group) {
  return std::bit_cast<float>(numbers.least[group] + 1);
}

// Whether a table has integers alone.
bool is_of_integers(const Levels& levels) {
  return std::all_of(levels.table, levels.table + levels.count,
                     [](float level) { return level == std::nearbyint(level); });
}

}  // namespace

Search::Search(const Kind& kind, Precision precision, size_t& failures)
    : kind_(kind),
      precision_(precision),
      error_(relative_error(precision)),
      failures_(failures),
      finder_(kind, precision, failures),
      is_narrow_(kind.levels.family != Family::integers ||
                 static_cast<float>(16 << kind.levels.low_bits) * error_ < kNarrow),
      may_have_one_(kind.levels.family != Family::floats && is_of_integers(kind.levels)),
      usual_(kind.has_ones ? kLeastIsOne : Guess{false, finder_.last_top()}) {}

void Search::start(const Guess& guess, size_t groups, const GroupNumbers& numbers) const {
  if (kind_.fixed_scale == 0) {
    return kernels().quantized->start(groups, guess, error_, numbers);
  }
  std::fill_n(numbers.low, groups, bits_of(kind_.fixed_scale));
  std::fill_n(numbers.high, groups, bits_of(kind_.fixed_scale));
}

void Search::find(Section& section, float* scales) {
  const size_t groups = section.groups();
  const GroupNumbers numbers = numbers_in(all_, groups);
  if (is_together_) {
    find_together(section, numbers);
  } else {
    std::fill_n(numbers.scale, groups, 0.0f);
  }
  size_t n_alone = 0;
  for (size_t g = 0; g < groups; ++g) {
    scales[g] = numbers.scale[g];
    if (scales[g] == 0) {
      scales[g] = find_alone(section, g, numbers);
      if (scales[g] == 0) continue;
      ++n_alone;
    }
    finder_.set_last_scale(scales[g]);
  }
  if (is_together_ && 8 * n_alone > groups) learn(numbers, scales, groups);
  // An interval of binary32 has few numbers, and the simplest one is right only where the library
  // that quantised chose simple scales.
  if (precision_ == Precision::binary32 && n_alone == groups) is_together_ = false;
}

void Search::find_together(Section& section, const GroupNumbers& numbers) {
  const GroupedValues values = section.values();
  const QuantizedKernels& kernel = *kernels().quantized;
  kernel.measure(values, numbers);
  // Parts of groups may have any largest level.
  const bool is_integers = kind_.levels.family == Family::integers;
  if (is_integers && !section.is_whole(0)) usual_ = kLeastIsOne;
  start(usual_, values.groups, numbers);
  kernel.search(kind_.levels, precision_, values, is_narrow_, numbers, section.codes());
  if (is_integers && values.rows != 0) search_columns(section, numbers);
}

// Parts of columns may be so short that no level is 1: of 32 Gaussian values in 255 levels, in half
// of the cases. One by one, columns take some ten times as long.
void Search::search_columns(Section& section, const GroupNumbers& numbers) {
  const size_t groups = section.groups();
  std::vector<float> found(groups);
  for (float level = 2; level <= 4; ++level) {
    std::copy_n(numbers.scale, groups, found.data());
    const auto missing = static_cast<size_t>(std::count(found.begin(), found.end(), 0.0f));
    if (16 * missing < groups) return;
    start({true, level}, groups, numbers);
    for (size_t g = 0; g < groups; ++g) {
      const float scale = std::fabs(found[g]);
      const bool is_too_fine = !is_usual(numbers, g, level);
      if (scale == 0 && !is_too_fine) continue;
      numbers.low[g] = bits_of(scale == 0 ? 1.0f : scale);
      numbers.high[g] = bits_of(scale);
    }
    kernels().quantized->search(kind_.levels, precision_, section.values(), is_narrow_, numbers,
                                section.codes());
  }
}

// Whether a level of the smallest magnitude but 0 makes the largest one no more than usual. Twice
// the levels with half the scale are possible, too, but take more.
bool Search::is_usual(const GroupNumbers& numbers, size_t group, float level) const {
  const float ratio = most_of(numbers, group) / least_of(numbers, group);
  return ratio * level <= kind_.tops.front() + 0.5f;
}

// Of the last group's largest level, and 1 as the smallest one, the guess that is right for more
// groups.
void Search::learn(const GroupNumbers& numbers, const float* scales, size_t groups) {
  size_t as_last = 0, with_one = 0;
  float last = 0;
  for (size_t g = groups; g-- > 0;) {
    if (scales[g] == 0) continue;
    const float inverse = 1 / std::fabs(scales[g]);
    const float largest = std::nearbyint(most_of(numbers, g) * inverse);
    if (last == 0) last = largest;
    as_last += largest == last ? 1 : 0;
    with_one += least_of(numbers, g) * inverse < 1.5f ? 1 : 0;
  }
  usual_ = may_have_one_ && with_one > as_last ? kLeastIsOne : Guess{false, last};
}

// Of integers, most groups have a one.
std::vector<Guess> Search::other_guesses() const {
  if (kind_.fixed_scale != 0 || precision_ == Precision::binary32) return {};
  std::vector<Guess> guesses;
  if (may_have_one_) {
    guesses = {{false, kind_.tops.front()}, kLeastIsOne, {true, 2}, {true, 3}};
  } else if (values_.size() >= kManyValues) {  // in others, ScaleFinder takes little more
    for (const float top : kind_.tops) guesses.push_back({false, top});
  }
  std::erase(guesses, usual_);
  return guesses;
}

float Search::try_guess(const Guess& guess, const GroupNumbers& numbers, size_t group) {
  const QuantizedKernels& kernel = *kernels().quantized;
  const bool is_finer = guess.is_least && guess.level > 1;
  if (is_finer && !is_usual(numbers, group, guess.level)) return 0;
  const GroupNumbers one = numbers_in(one_, 1);
  *one.most = numbers.most[group], *one.least = numbers.least[group];
  *one.balance = numbers.balance[group];
  start(guess, 1, one);
  const Interval interval{float_of(*one.low), float_of(*one.high)};
  if (interval.low > interval.high) return 0;
  const size_t n = values_.size();
  const Interval few =
      kernel.narrow(kind_.levels, precision_, values_.data(), std::min(n, kFewValues), interval);
  if (few.low > few.high) return 0;
  const float first = values_[0];
  values_.resize(padded(n), first);
  codes_.resize(padded(n)), levels_.resize(padded(n));
  const GroupRun run{0, static_cast<uint32_t>(n), 0};
  kernel.search(kind_.levels, precision_, {values_.data(), 1, &run, 1, 0}, is_narrow_, one,
                {codes_.data(), levels_.data()});
  values_.resize(n);
  return *one.scale;
}

float Search::find_alone(Section& section, size_t group, const GroupNumbers& numbers) {
  section.collect(group, values_);
  if (values_.empty()) return 0;
  for (const Guess& guess : other_guesses()) {
    const float scale = try_guess(guess, numbers, group);
    if (scale == 0) continue;
    section.set_codes(group, codes_.data());
    return scale;
  }
  return find_slowly(section, group);
}

float Search::find_slowly(Section& section, size_t group) {
  const float scale = finder_.find(values_.data(), values_.size(), section.is_whole(group));
  if (scale == 0) {
    // Of integers, the finder counts those that took long.
    if (kind_.levels.family != Family::integers && failures_ != 0) --failures_;
    return 0;
  }
  find_codes(kind_.levels, precision_, values_, {scale, 0}, codes_);
  section.set_codes(group, codes_.data());
  return scale;
}

}  // namespace bf16codecs::quantized
