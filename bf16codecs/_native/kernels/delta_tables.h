#pragma once

// The parts of the difference mode's tables that only some kernels read: DeltaKernels::prepare is
// one of these.

#include "kernels/delta.h"

namespace bf16codecs {

// Makes DeltaTables::slots, kDeltaSlots of each class, for kernels that look up lanes one by one.
void spell_out_slots(DeltaTables& tables, uint32_t* slots);
// Makes DeltaTables::entries and entry_at, for AVX2: with a byte for each slot, the tables of eight
// classes are as large as a first-level cache of 32 KiB. With one of 48 KiB, a second look-up takes
// as long as what misses the cache.
void spell_out_entries(DeltaTables& tables, uint32_t* memory);
inline constexpr size_t kDeltaEntryWords = kDeltaEntries + kDeltaSlots / sizeof(uint32_t);
// Makes the words of a binary search, for AVX-512, which has them in registers. Gathering slots
// took 14 of a step's 18 ns, the search 7 to 12 (docs/experiments.md, "Differences").
void spread_search(DeltaTables& tables, uint32_t* slots);

}  // namespace bf16codecs
