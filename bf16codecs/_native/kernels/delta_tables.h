#pragma once

// The parts of the difference mode's tables that only some kernels read: DeltaKernels::prepare is
// one of these.

#include "kernels/delta.h"

namespace bf16codecs {

// DeltaTables::slots, for kernels that look up lanes one by one; kDeltaSlots of each class.
void spell_out_slots(DeltaTables& tables, uint32_t* slots);
// The words to search by halves, for AVX-512, which has them in registers: its gathers are slower.
void spread_search(DeltaTables& tables, uint32_t* slots);

}  // namespace bf16codecs
