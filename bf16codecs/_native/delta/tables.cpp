#include "delta/tables.h"

#include <algorithm>

namespace bf16codecs::delta {
namespace {

// 2^(i / 8) in 4096ths.
constexpr uint32_t kPowers[8] = {4096, 4467, 4871, 5312, 5793, 6317, 6889, 7512};

uint64_t power_of(unsigned weight) {
  return weight == 0 ? 0 : uint64_t{kPowers[(weight - 1) % 8]} << (weight - 1) / 8;
}

void fill_search(DeltaTables& tables, unsigned c) {
  const uint16_t* const start = tables.start + kDeltaEntries * c;
  tables.search1[c] = start[8];
  for (unsigned i = 0; i < 2; ++i) tables.search2[2 * c + i] = start[8 * i + 4];
  for (unsigned i = 0; i < 4; ++i) tables.search4[4 * c + i] = start[4 * i + 2];
  for (unsigned i = 0; i < 8; ++i) tables.search8[8 * c + i] = start[2 * i + 1];
}

void fill_slots(const Frequencies& frequencies, const ClassCode& code, uint32_t* slot) {
  for (unsigned j = 0; j < kDeltaEntries; ++j) {
    const uint32_t first = j << 28 | raw_bits(code, j) << 24 | frequencies[j];
    for (uint32_t rank = 0; rank < frequencies[j]; ++rank) *slot++ = first | rank << 12;
  }
}

}  // namespace

bool make_frequencies(const ClassCode& code, Frequencies& frequencies) {
  uint64_t sum = 0;
  for (const uint8_t weight : code.weights) sum += power_of(weight);
  if (sum == 0) return false;
  unsigned total = 0, largest = 0;
  for (unsigned j = 0; j < kDeltaEntries; ++j) {
    const uint64_t power = power_of(code.weights[j]);
    const uint64_t least = power == 0 ? 0 : least_frequency(raw_bits(code, j));
    frequencies[j] = static_cast<uint16_t>(std::max(least, (kTotal * power + sum / 2) / sum));
    total += frequencies[j];
    if (frequencies[j] > frequencies[largest]) largest = j;
  }
  const unsigned others = total - frequencies[largest];
  if (others == 0 || others + least_frequency(raw_bits(code, largest)) > kTotal) return false;
  frequencies[largest] = static_cast<uint16_t>(kTotal - others);
  return true;
}

Tables::Tables(const std::vector<ClassCode>& classes, bool with_slots)
    : slots_(with_slots ? size_t{kTotal} * classes.size() : 0) {
  tables_.classes = static_cast<unsigned>(classes.size());
  tables_.slots = with_slots ? slots_.data() : nullptr;
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
    fill_search(tables_, c);
    if (with_slots) fill_slots(frequencies, classes[c], slots_.data() + size_t{kTotal} * c);
  }
}

}  // namespace bf16codecs::delta
