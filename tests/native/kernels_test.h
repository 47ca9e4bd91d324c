#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace bf16codecs::test {

// Each compares functions of one instruction set with the scalar definition, and ends the program
// where they differ.
void test_planes(const Kernels& kernels);  // checksum, split16, merge16, histogram
void test_pairs(const Kernels& kernels);   // pairs_decode, pairs_decode16, pairs_encode
void test_huffman_pack(const Kernels& kernels);
void test_sparse(const Kernels& kernels);       // those of Kernels::sparse
void test_tiles(const Kernels& kernels);        // those of Kernels::tiles
void test_tiles_ahead(const Kernels& kernels);  // TileKernels::decode_restore
void test_quantized(const Kernels& kernels);    // those of Kernels::quantized
void test_magnitudes(const Kernels& kernels);   // load_keys16 and those of Kernels::magnitudes

// Those of Kernels::delta: for coding, and for differences. Both return a digest of all that came
// out.
uint64_t test_delta(const Kernels& kernels);
uint64_t test_delta_items(const Kernels& kernels);

// Encodes and decodes whole frames, sound and damaged ones, with the instruction set in use.
// Returns a digest of all the bytes and errors that came out.
uint64_t test_frames();

}  // namespace bf16codecs::test
