#include "pairs_tables.h"

#include <algorithm>

namespace bf16codecs::test {
namespace {

void choose_symbols(Entries& entries, Symbols symbols, Random& random) {
  const uint8_t first = random.byte();
  for (unsigned i = 0; i < entries.named(); ++i) {
    do {
      entries.symbol[i] = symbols == Symbols::window
                              ? static_cast<uint8_t>(first + random.below(24))
                              : random.byte();
    } while (std::count(entries.symbol, entries.symbol + i, entries.symbol[i]) != 0);
  }
}

void set_starts(Entries& entries) {
  for (unsigned i = 1; i < entries.n; ++i) {
    entries.start[i] = entries.start[i - 1] + entries.frequency[i - 1];
  }
}

void repeat(const uint8_t row[16], uint8_t table[64]) {
  for (unsigned i = 0; i < 64; ++i) table[i] = row[i % 16];
}

}  // namespace

bool Entries::has(uint8_t s) const {
  return std::count(symbol, symbol + named(), s) != 0;
}

Entries random_entries(unsigned n, bool has_escape, Symbols symbols, Random& random) {
  // Slots where an entry may begin: any bucket's first and one inside it, any of the last bucket.
  std::vector<unsigned> begins;
  for (unsigned bucket = 0; bucket < 15; ++bucket) {
    begins.push_back(16 * bucket + 1 + random.below(15));
    begins.push_back(16 * bucket + 16);
  }
  for (unsigned slot = 241; slot < 256; ++slot) begins.push_back(slot);
  for (size_t i = begins.size(); i > 1; --i) std::swap(begins[i - 1], begins[random.below(i)]);
  begins.resize(n - 1);
  begins.push_back(0);
  begins.push_back(256);
  std::sort(begins.begin(), begins.end());

  Entries entries;
  entries.n = n, entries.has_escape = has_escape;
  for (unsigned i = 0; i < n; ++i) entries.frequency[i] = begins[i + 1] - begins[i];
  set_starts(entries);
  choose_symbols(entries, symbols, random);
  return entries;
}

Entries lopsided_entries(unsigned n, bool has_escape, bool large_first, Random& random) {
  Entries entries;
  entries.n = n, entries.has_escape = has_escape;
  for (unsigned i = 0; i < n; ++i) entries.frequency[i] = 1;
  entries.frequency[large_first ? 0 : n - 1] = 257 - n;
  set_starts(entries);
  choose_symbols(entries, Symbols::anywhere, random);
  return entries;
}

PairsTable decoder_table(const Entries& entries, Random& random) {
  PairsTable table;
  uint8_t frequency[16] = {}, start[16] = {}, base[16], threshold[16];
  for (unsigned i = 0; i < entries.n; ++i) {
    frequency[i] = static_cast<uint8_t>(entries.frequency[i]);
    start[i] = static_cast<uint8_t>(entries.start[i]);
    for (unsigned k = 0; k < entries.frequency[i]; ++k) {
      table.slot_entry[entries.start[i] + k] = static_cast<uint8_t>(i);
    }
  }
  for (unsigned bucket = 0; bucket < 16; ++bucket) {
    const uint8_t* slots = table.slot_entry + 16 * bucket;
    unsigned same = 1;
    while (same < 16 && slots[same] == slots[0]) ++same;
    base[bucket] = slots[0];
    threshold[bucket] = static_cast<uint8_t>(same < 16 ? 16 * bucket + same : 255);
  }
  // The last bucket has its own look-up and may not depend on these.
  base[15] = random.byte(), threshold[15] = random.byte();
  repeat(base, table.base), repeat(threshold, table.threshold);
  repeat(table.slot_entry + 240, table.last);
  repeat(frequency, table.frequency), repeat(start, table.start);
  repeat(entries.symbol, table.symbol);
  table.escape = static_cast<uint8_t>(entries.has_escape ? entries.n - 1 : 255);
  return table;
}

PairsEncoder encoder_for(const Entries& entries, unsigned groups) {
  PairsEncoder encoder;
  encoder.groups = groups;
  encoder.rows = 0;
  encoder.escape = static_cast<uint8_t>(entries.has_escape ? entries.n - 1 : 255);
  std::fill_n(encoder.entry_of, 256, encoder.escape);
  for (unsigned i = 0; i < 16; ++i) {
    const unsigned frequency = i < entries.n ? entries.frequency[i] : 1;
    encoder.entry[i] = frequency | entries.start[i] << 16;
    encoder.reciprocal[i] = 1.0f / static_cast<float>(frequency) * (1.0f - kReciprocalBias);
    if (i >= entries.named()) continue;
    encoder.entry_of[entries.symbol[i]] = static_cast<uint8_t>(i);
    encoder.rows = static_cast<uint16_t>(encoder.rows | 1u << entries.symbol[i] / 16);
  }
  return encoder;
}

}  // namespace bf16codecs::test
