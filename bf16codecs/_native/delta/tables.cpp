// Weights, frequencies and tables of classes (docs/format_differences.md, "The difference model").

#include "delta/tables.h"

#include <algorithm>

#include "grid/fixed_point.h"

namespace bf16codecs::delta {
namespace {

// weight[j] of the format, with g = weight.
uint64_t power_of(unsigned weight) {
  return weight == 0 ? 0 : uint64_t{grid::kEighths[(weight - 1) % 8]} << (weight - 1) / 8;
}

}  // namespace

void choose_weights(const uint32_t counts[kDeltaEntries], size_t width, ClassCode& code) {
  // Counts in quarters, and a quarter more for entries that the sample missed.
  std::array<uint64_t, kDeltaEntries> likely;
  uint64_t total = 0, most = 0;
  for (unsigned j = 0; j < kDeltaEntries; ++j) total += likely[j] = 4 * uint64_t{counts[j]} + 1;
  for (unsigned j = 0; j < kDeltaEscape; ++j) {
    // The frequency of an entry with many raw bits is a large share of all. If the entry is rare,
    // that costs more than it saves, and it is left out: an escape takes 12 bits and the item.
    const unsigned q = raw_bits(code, j);
    const uint64_t taken = total * frequency_unit(q) * 3 / (2 * kTotal);
    const uint64_t saved = likely[j] * (12 + 8 * width - q);
    if (saved < taken) likely[j] = 0;
    most = std::max(most, likely[j]);
  }
  most = std::max(most, likely[kDeltaEscape]);
  const int top = grid::log2_floor(most);
  for (unsigned j = 0; j < kDeltaEntries; ++j) {
    if (likely[j] == 0) {
      code.weights[j] = 0;
      continue;
    }
    constexpr int kEighth = grid::kOctave / 8;
    const int below = (top - grid::log2_floor(likely[j]) + kEighth / 2) / kEighth;
    code.weights[j] = static_cast<uint8_t>(std::max(1, static_cast<int>(kMaxWeight) - below));
  }
  Frequencies frequencies;
  if (make_frequencies(code, frequencies)) return;
  // Fall back to weights that always make frequencies.
  for (unsigned j = 0; j < kDeltaEntries; ++j) {
    code.weights[j] = j == kDeltaEscape || raw_bits(code, j) <= kMaxDeltaRaw + 1;
  }
}

uint64_t coded_bits(const uint32_t counts[kDeltaEntries], size_t width, const ClassCode& code) {
  Frequencies frequencies{};
  make_frequencies(code, frequencies);
  uint64_t bits = 0;
  for (unsigned j = 0; j < kDeltaEntries; ++j) {
    const bool is_coded = frequencies[j] != 0 && j != kDeltaEscape;
    const unsigned f = frequencies[is_coded ? j : kDeltaEscape];
    const auto raw = static_cast<unsigned>(is_coded ? raw_bits(code, j) : 8 * width);
    const auto cost = static_cast<uint64_t>(grid::log2_floor(kTotal) - grid::log2_floor(f));
    bits += counts[j] * (cost + raw * uint64_t{grid::kOctave});
  }
  return bits;
}

bool make_frequencies(const ClassCode& code, Frequencies& frequencies) {
  uint64_t sum = 0;
  for (const uint8_t weight : code.weights) sum += power_of(weight);
  if (sum == 0) return false;
  unsigned total = 0, largest = kDeltaEscape;
  frequencies[kDeltaEscape] = 0;
  for (unsigned j = 0; j < kDeltaEntries; ++j) {
    const uint64_t power = power_of(code.weights[j]), unit = frequency_unit(raw_bits(code, j));
    const uint64_t units = (kTotal * power + sum * unit / 2) / (sum * unit);
    frequencies[j] = static_cast<uint16_t>(power == 0 ? 0 : unit * std::max<uint64_t>(1, units));
    total += frequencies[j];
    if (j != kDeltaEscape &&
        frequencies[j] > (largest == kDeltaEscape ? 0 : frequencies[largest])) {
      largest = j;
    }
  }
  if (largest == kDeltaEscape) return false;
  // The rest of 4096 goes to the largest frequency in whole units, and what is less than a unit to
  // the escape.
  const int unit = static_cast<int>(frequency_unit(raw_bits(code, largest)));
  const int left = static_cast<int>(kTotal) - static_cast<int>(total);
  const int rest = (left % unit + unit) % unit;
  const int most = frequencies[largest] + left - rest;
  if (most < unit) return false;
  frequencies[largest] = static_cast<uint16_t>(most);
  frequencies[kDeltaEscape] = static_cast<uint16_t>(frequencies[kDeltaEscape] + rest);
  return true;
}

Tables::Tables(const std::vector<ClassCode>& classes) {
  tables_.classes = static_cast<unsigned>(classes.size());
  for (unsigned c = 0; c < classes.size(); ++c) {
    Frequencies frequencies{};
    make_frequencies(classes[c], frequencies);
    tables_.raw[c] = classes[c].raw;
    unsigned start = 0;
    for (unsigned j = 0; j < kDeltaEntries; ++j) {
      const unsigned at = kDeltaEntries * c + j;
      tables_.start[at] = static_cast<uint16_t>(start);
      tables_.coder[at] = static_cast<uint16_t>(raw_bits(classes[c], j) << 12 | frequencies[j]);
      start += frequencies[j];
    }
  }
}

Tables::Tables(const std::vector<ClassCode>& classes, const DeltaKernels& kernels)
    : Tables(classes) {
  slots_.resize(kernels.class_slots * classes.size());
  kernels.prepare(tables_, slots_.data());
}

}  // namespace bf16codecs::delta
