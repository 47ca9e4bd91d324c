// Relation, low bytes and scale of a section, from a sample of its items.

#include <algorithm>
#include <bit>

#include "delta/fit.h"
#include "delta/means.h"
#include "delta/numbers.h"
#include "grid/fixed_point.h"
#include "grid/keys.h"

namespace bf16codecs::delta {
namespace {

using grid::kOctave;
using grid::kScaleSteps;

// The largest log2 of a mean number that shows the scale. Above it, items may be as small as the
// scale, and so in near classes.
int most_informative(unsigned fraction) {
  return static_cast<int>(fraction) - 2;
}

// Low bytes are split off only if the mean of the numbers above them stays at least this large.
// Otherwise the low bytes would not be noise.
constexpr unsigned kLeastMean = 4;

// The coded numbers of a sample if all of its items are in one class that is not near.
std::vector<uint16_t> far_numbers(const Layout& layout, const Sample& sample, Section section) {
  const size_t n = sample.size();
  section.shape.near = 1;
  std::vector<uint16_t> numbers(n);
  std::vector<uint8_t> classes(n), low_bytes(section.low * n);
  uint8_t* low[kMaxItemSize];
  for (unsigned k = 0; k < section.low; ++k) low[k] = low_bytes.data() + n * k;
  Numbers(layout, section)
      .subtract(sample.base.data(), sample.items.data(), sample.scales.data(), classes.data(), n,
                numbers.data(), low);
  return numbers;
}

// The means of the numbers by the exponent of the base's item.
std::vector<Mean> by_exponent(const Layout& layout, const Sample& sample,
                              const std::vector<uint16_t>& numbers) {
  const grid::KeyFormat format(layout);
  std::vector<uint16_t> exponents(sample.size());
  grid::load_keys(layout, sample.base.data(), sample.size(), exponents.data());
  for (uint16_t& exponent : exponents)
    exponent = static_cast<uint16_t>(exponent >> format.fraction);
  return robust_means<uint16_t>(exponents, numbers, size_t{1} << (format.bits - format.fraction));
}

// The sum of the numbers' lengths in bits.
uint64_t total_length(const std::vector<uint16_t>& numbers) {
  uint64_t sum = 0;
  for (const uint16_t number : numbers) sum += static_cast<uint64_t>(std::bit_width(number));
  return sum;
}

// The first items of a sample.
Sample first_items(const Layout& layout, const Sample& sample, size_t n) {
  n = std::min(n, sample.size());
  const auto size = static_cast<std::ptrdiff_t>(n * layout.planes());
  return {{sample.base.begin(), sample.base.begin() + size},
          {sample.items.begin(), sample.items.begin() + size},
          std::vector<uint16_t>(n)};
}

// Chooses the relation by the lengths of the numbers: items may be floating-point numbers,
// integers, or bit fields.
void fit_relation(const Layout& layout, const Sample& of, Section& section) {
  constexpr size_t kEnough = 256;
  const Sample sample = first_items(layout, of, kEnough);
  uint64_t least = UINT64_MAX;
  for (const Relation relation : {Relation::ordered, Relation::plain, Relation::exclusive_or}) {
    Section tried = section;
    tried.relation = relation;
    const uint64_t length = total_length(far_numbers(layout, sample, tried));
    // The other relations have no classes, so they must gain more than classes do.
    if (least != UINT64_MAX && length + least / 8 >= least) continue;
    least = length;
    section.relation = relation;
  }
}

// The mean, over exponents, of log2 of the mean difference: a difference counts units in the last
// place of the base's item, so that the exponent is added to its log2. If the differences are
// updates of one size, rounded, the sum is the same for all exponents.
int mean_log_scale(const std::vector<Mean>& exponents, const Section& section) {
  const int fraction = static_cast<int>(section.shape.fraction);
  int64_t sum = 0, weight = 0;
  int highest = 0;
  uint64_t most = 0;
  for (int e = 0; e < static_cast<int>(exponents.size()); ++e) {
    const Mean& exponent = exponents[static_cast<size_t>(e)];
    if (exponent.count == 0) continue;
    if (exponent.count > most) most = exponent.count, highest = e;
    const int log_mean = exponent.log() + 8 * static_cast<int>(section.low) * kOctave;
    if (exponent.sum == 0 || log_mean > most_informative(section.shape.fraction) * kOctave)
      continue;
    const auto count = static_cast<int64_t>(exponent.count);
    sum += count * (log_mean + (e - fraction) * kOctave);
    weight += count;
  }
  // If no difference is small, the base is no context, and all items are near.
  return weight == 0 ? (highest + 2) * kOctave : static_cast<int>(sum / weight);
}

}  // namespace

void fit_scale(const Layout& layout, Sample& sample, bool has_scales, Section& section) {
  const size_t width = layout.planes();
  section.low = width > 2 ? static_cast<unsigned>(width) - 2 : 0;
  fit_relation(layout, sample, section);
  for (;; --section.low) {
    const std::vector<uint16_t> numbers = far_numbers(layout, sample, section);
    const std::vector<Mean> exponents = by_exponent(layout, sample, numbers);
    uint64_t sum = 0;
    for (const uint16_t number : numbers) sum += std::min<uint16_t>(number, 64 * kLeastMean);
    if (section.low != 0 && sum < kLeastMean * numbers.size()) continue;
    section.shape.near_raw = near_raw_bits(layout, section.low);
    if (has_scales) return;
    const int log_scale = mean_log_scale(exponents, section);
    const int octave = (log_scale + kOctave / 2) >> 12;
    const int most = grid::KeyFormat(layout).max_scale() / static_cast<int>(kScaleSteps);
    section.base =
        static_cast<uint16_t>(std::clamp(octave, 0, most) * static_cast<int>(kScaleSteps));
    std::fill(sample.scales.begin(), sample.scales.end(), section.base);
    return;
  }
}

}  // namespace bf16codecs::delta
