#pragma once

// The parts of the tiles mode's tables that only some kernels read: TileKernels::prepare and
// prepare_code are these.

#include "kernels/tiles.h"

namespace bf16codecs {

// TileTable::slot, of which a loop over lanes needs one look-up each: the scalar kernels.
void spell_out_slots(const AliasTable& alias, TileTable& table);
// The words by buckets, for vectors that look up 64 entries in two registers: VBMI2.
void spread_buckets(const AliasTable& alias, TileTable& table);

// TileCodeTable::slot, for kernels that look up lanes one by one.
void spell_out_code_slots(const AliasTable& alias, TileCodeTable& table);
// The pieces, for AVX-512, which searches them in registers: its gathers are slower.
void cut_pieces(const AliasTable& alias, TileCodeTable& table);

}  // namespace bf16codecs
