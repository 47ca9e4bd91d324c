#pragma once

// The kernels: pure loops over memory that neither allocate nor report errors. The scalar functions
// (scalar.cpp, tiles.cpp, delta.cpp, magnitudes.cpp, sparse.cpp) are the definition; every other
// instruction set gives the same bytes. This header and those of the modes state the preconditions,
// and callers check them. Damaged input leads to wrong symbols and flags, never to an access
// outside of the memory that is named here: the callers reject it by the flags and by the last
// states.
//
// To read a kernel, begin with lanes.h, which describes the lanes, and with the scalar function,
// which has the formulas and the ranges of what they give. The layouts of lanes in registers are in
// x86/avx2_words.h, arm/neon_lanes.h, wasm/simd128_lanes.h, and at the top of the
// files for AVX-512.

#include <cstddef>
#include <cstdint>

#include "kernels/compilers.h"
#include "kernels/delta.h"
#include "kernels/huffman_pack.h"
#include "kernels/lanes.h"
#include "kernels/magnitudes.h"
#include "kernels/quantized.h"
#include "kernels/sparse.h"
#include "kernels/tiles.h"

namespace bf16codecs {

// The sums a[j] and c[j] of docs/format.md, "Checksum", before they are folded.
struct ChecksumState {
  uint64_t a[16] = {};
  uint64_t c[16] = {};
};

// Bytes that a decoder of the pairs mode may read from the word on with which a step begins: a word
// for each of the 128 lanes, and one vector of 64 bytes, because kernels load whole vectors of
// words before they know how many of them the lanes need.
inline constexpr size_t kWordMargin = 2 * kMaxLanes + 64;

// Bytes below its last word that a rANS encoder may overwrite: where there is no compressing store,
// a kernel stores 16 bytes, and only the upper ones are words.
inline constexpr size_t kEncodeMargin = 16;

// Look-up tables of the pairs mode. Each has 16 bytes, repeated four times to fill a register,
// because byte shuffles look up within each 16 bytes of a register.
//
// A slot's entry is base[bucket], plus one if the slot is not below threshold[bucket], where bucket
// is slot div 16: that is enough, as at most one entry begins inside of a bucket (docs/format.md,
// "rANS plane, pairs"). In the last bucket, for which the rule does not hold, the entry is
// last[slot mod 16]. Frequencies and starts fit in bytes: there are at least two entries, so none
// has all 256 slots.
struct PairsTable {
  alignas(64) uint8_t base[64], threshold[64], last[64], frequency[64], start[64], symbol[64];
  uint8_t slot_entry[256];  // the entry of each slot, for scalar code
  uint8_t escape;           // the escape's entry, or 255
};

struct PairsDecoder {
  const PairsTable* table;
  unsigned groups;         // 1, 2 or 4
  const uint8_t* words;    // the next word
  const uint8_t* escapes;  // the next escape
  const uint8_t* escapes_end;
  bool escapes_overrun;               // an escape was needed past escapes_end, and 0 took its place
  alignas(64) uint32_t x[kMaxLanes];  // by group and lane
};

struct PairsEncoder {
  // Of each entry the frequency in the lower half and the start in the upper one; and
  // (1 - kReciprocalBias) / frequency.
  alignas(64) uint32_t entry[16];
  alignas(64) float reciprocal[16];
  alignas(64) uint8_t entry_of[256];  // by symbol; the escape's where a symbol has none
  uint16_t rows;                      // bit r: some of symbols 16 r ... 16 r + 15 have an entry
  uint8_t escape;                     // the escape's entry, or 255
  unsigned groups;
  uint8_t* words;    // words are written downwards from here
  uint8_t* escapes;  // escapes are written downwards from here
  alignas(64) uint32_t x[kMaxLanes];
};

inline constexpr unsigned kWindowSymbols = 16;

struct Kernels {
  const char* name;

  void (*checksum)(ChecksumState& state, const uint8_t* bytes, size_t stripes);

  // Rotates 16-bit items left by one (docs/format.md, "Element layout"), which makes keys of them.
  void (*load_keys16)(const uint8_t* items, size_t n, uint16_t* keys);
  // Makes keys of the distances between bfloat16 items and those of a base. A distance that is
  // infinite or not a number counts as 0, and every key is at least 2. Subnormal items and
  // distances count as zeros.
  void (*load_distances16)(const uint8_t* base, const uint8_t* items, size_t n, uint16_t* keys);
  // Rotates 16-bit items left by one and parts them into planes; and back.
  void (*split16)(const uint8_t* items, size_t n, uint8_t* high, uint8_t* low);
  void (*merge16)(const uint8_t* high, const uint8_t* low, size_t n, uint8_t* items);

  // Adds to counts[s] how often symbol s occurs. It is fast where nearly all symbols are among the
  // kWindowSymbols from `window` on (modulo 256).
  void (*histogram)(const uint8_t* plane, size_t n, uint8_t window, uint32_t counts[256]);

  const MagnitudeKernels* magnitudes;

  // Decodes whole steps into `plane` while steps are left and decoder.words <= limit; returns the
  // steps that are left. A step begins at `limit` at the latest, so kWordMargin bytes from `limit`
  // on must be readable, and decoder.words ends at most 2 kMaxLanes bytes past it.
  size_t (*pairs_decode)(PairsDecoder& decoder, const uint8_t* limit, uint8_t* plane, size_t steps);

  // Does the same with the symbols as high plane and `low` as low plane of 16-bit items, which it
  // rotates back.
  size_t (*pairs_decode16)(PairsDecoder& decoder, const uint8_t* limit, const uint8_t* low,
                           uint8_t* items, size_t steps);

  // Encodes whole steps from the last one to the first. A step writes at most 32 words and 64
  // escapes a group. The caller provides that room below encoder.words and encoder.escapes, and
  // kEncodeMargin bytes more below the words.
  void (*pairs_encode)(PairsEncoder& encoder, const uint8_t* plane, size_t steps);

  // Writes the codes of symbols to the sink, kPackSymbols at a time, while that many are left and
  // the sink has kPackRoom; returns how many symbols it wrote. Null where the loops of
  // huffman/encode.cpp, which give the same bytes, are as fast.
  size_t (*huffman_pack)(BitSink& sink, const uint16_t entries[kPackEntries],
                         const uint8_t* symbols, size_t n);

  // scales[i] = row + columns[i] 2^step, limited to 0 ... most (docs/format_tiles.md, "Scales").
  // 0 <= row <= most < 2^15, and columns[i] 2^step fits in a signed word.
  void (*add_columns)(const int16_t* columns, unsigned step, int row, int most, size_t n,
                      uint16_t* scales);

  // Counts the bits in which two strings of 8 n bytes differ.
  size_t (*differing_bits)(const uint8_t* a, const uint8_t* b, size_t n);

  // Sets bit i of masks[g] if word 64 g + i of two strings, of eight bytes, differs; there are
  // 64 n words.
  void (*differing_words)(const uint8_t* a, const uint8_t* b, size_t n, uint64_t* masks);

  const QuantizedKernels* quantized;

  const TileKernels* tiles;
  const DeltaKernels* delta;
  const SparseKernels* sparse;
};

void scalar_differing_words(const uint8_t* a, const uint8_t* b, size_t n, uint64_t* masks);

extern const Kernels kScalarKernels;
#if defined(__x86_64__) || defined(_M_X64)
extern const Kernels kAvx2Kernels;         // AVX2
extern const Kernels kAvx512Kernels;       // AVX-512 F, BW, DQ, VL
extern const Kernels kAvx512Vbmi2Kernels;  // also VBMI and VBMI2: tiles, differences, zeros
extern const Kernels kAvx512Bf16Kernels;   // also BF16: grids
#endif
#if defined(__AARCH64EL__) || defined(_M_ARM64)
extern const Kernels kNeonKernels;  // the baseline of little-endian AArch64
#endif
#if defined(__wasm_simd128__)
extern const Kernels kSimd128Kernels;  // WebAssembly's vectors of 128 bits
#endif

// The kernels in use: the last of available_kernels(), or those that BF16CODECS_ISA names.
const Kernels& kernels();

}  // namespace bf16codecs
