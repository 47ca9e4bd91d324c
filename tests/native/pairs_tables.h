#pragma once

// Tables of the pairs mode for tests, built from docs/format.md alone.

#include "check.h"
#include "kernels/kernels.h"

namespace bf16codecs::test {

struct Entries {
  unsigned n = 0;
  bool has_escape = false;  // the last entry
  unsigned frequency[16] = {}, start[16] = {};
  uint8_t symbol[16] = {};

  unsigned named() const { return n - (has_escape ? 1 : 0); }
  bool has(uint8_t s) const;
};

enum class Symbols { window, anywhere };

// Entries with frequencies that keep the rule of the buckets.
Entries random_entries(unsigned n, bool has_escape, Symbols symbols, Random& random);
// One frequency of 257 - n, the others 1; the large one first or last.
Entries lopsided_entries(unsigned n, bool has_escape, bool large_first, Random& random);

PairsTable decoder_table(const Entries& entries, Random& random);
// All but the places for words, escapes and states.
PairsEncoder encoder_for(const Entries& entries, unsigned groups);

}  // namespace bf16codecs::test
