#pragma once

// Tables of byte shuffles for kernels that expand or pack eight symbols at a time.

#include <cstdint>

namespace bf16codecs {

// For each mask of eight items, eight indices: kExpand[m] of item i is how many items of the mask
// come before it, or 128, for a zero byte, if it is not in the mask; kPack[m] of place k is the
// k-th item of the mask. A struct, so that kernels' files instantiate no template of the standard
// library.
struct SparseTables {
  uint64_t expand[256];
  uint64_t pack[256];
};

extern const SparseTables kSparseTables;

}  // namespace bf16codecs
