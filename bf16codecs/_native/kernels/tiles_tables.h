#pragma once

// The parts of the tiles mode's tables that only some kernels read: TileKernels::prepare and
// prepare_code are these.

#include "kernels/tiles.h"

namespace bf16codecs {

// Makes TileTable::slot, for the scalar kernels: a lane needs one look-up in it.
void spell_out_slots(const AliasTable& alias, TileTable& table);
// Makes the words by bucket, for AVX-512 with VBMI2: both candidates of a bucket are looked up at
// once, without waiting for the comparison that chooses between them.
void spread_buckets(const AliasTable& alias, TileTable& table);

// Makes TileCodeTable::slot, for kernels that look up lanes one by one.
void spell_out_code_slots(const AliasTable& alias, TileCodeTable& table);
// Makes the pieces, for AVX-512, which searches them in registers: its gathers are slower.
void cut_pieces(const AliasTable& alias, TileCodeTable& table);

}  // namespace bf16codecs
