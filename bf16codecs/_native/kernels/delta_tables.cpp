// The forms of the difference mode's tables that kernels read.

#include "kernels/delta_tables.h"

#include <algorithm>

namespace bf16codecs {

void spell_out_slots(DeltaTables& tables, uint32_t* slots) {
  // A class's frequencies have the sum 4096, so its slots end where those of the next begin.
  uint32_t* slot = slots;
  for (unsigned at = 0; at < kDeltaEntries * tables.classes; ++at) {
    const uint32_t f = tables.coder[at] & 4095, q = tables.coder[at] >> 12;
    const uint32_t first = at % kDeltaEntries << 28 | q << 12 | f;
    for (uint32_t rank = 0; rank < f; ++rank) *slot++ = first | rank << 16;
  }
  tables.slots = slots;
}

void spell_out_entries(DeltaTables& tables, uint32_t* memory) {
  const unsigned n = kDeltaEntries * tables.classes;
  auto* next = reinterpret_cast<uint8_t*>(memory + n);
  tables.entries = memory, tables.entry_at = next;
  for (unsigned at = 0; at < n; ++at) {
    const uint32_t f = tables.coder[at] & 4095;
    memory[at] = at % kDeltaEntries << 28 | uint32_t{tables.start[at]} << 16 | tables.coder[at];
    next = std::fill_n(next, f, static_cast<uint8_t>(at));
  }
}

void spread_search(DeltaTables& tables, uint32_t*) {
  for (unsigned c = 0; c < tables.classes; ++c) {
    const uint16_t* const start = tables.start + kDeltaEntries * c;
    tables.search1[c] = start[8];
    for (unsigned i = 0; i < 2; ++i) tables.search2[2 * c + i] = start[8 * i + 4];
    for (unsigned i = 0; i < 4; ++i) tables.search4[4 * c + i] = start[4 * i + 2];
    for (unsigned i = 0; i < 8; ++i) tables.search8[8 * c + i] = start[2 * i + 1];
  }
}

}  // namespace bf16codecs
