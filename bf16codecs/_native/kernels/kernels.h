#pragma once

// The kernels: pure loops over memory that neither allocate nor report. The scalar functions
// (kernels/scalar.cpp) are the definition; every other instruction set gives the same bytes.
// Preconditions are stated here and checked by the callers.

#include <cstddef>
#include <cstdint>

#include "kernels/delta.h"
#include "kernels/huffman_pack.h"
#include "kernels/lanes.h"
#include "kernels/magnitudes.h"
#include "kernels/tiles.h"

#if defined(_MSC_VER)
#define BF16CODECS_INLINE __forceinline
#define BF16CODECS_COLD __declspec(noinline)
#define BF16CODECS_UNROLL
#define BF16CODECS_UNROLL16
#else
#define BF16CODECS_INLINE inline __attribute__((always_inline))
#define BF16CODECS_COLD __attribute__((noinline, cold))
#define BF16CODECS_UNROLL _Pragma("GCC unroll 8")
#define BF16CODECS_UNROLL16 _Pragma("GCC unroll 16")
#endif

namespace bf16codecs {

// Sums of docs/format.md, "Checksum", before folding.
struct ChecksumState {
  uint64_t a[16] = {};
  uint64_t c[16] = {};
};

// Bytes that a rANS decoder may read past the word it is at: the words that a step of all
// lanes can use, and one vector more.
inline constexpr size_t kWordMargin = 2 * kMaxLanes + 64;

// Bytes below the last word that a rANS encoder may overwrite.
inline constexpr size_t kEncodeMargin = 16;

// Look-up tables of the pairs mode, each of 16 bytes and repeated to fill a vector register.
// A slot's entry is base[bucket], plus one if the slot is not below threshold[bucket]; in the
// last bucket it is last[slot mod 16].
struct PairsTable {
  alignas(64) uint8_t base[64], threshold[64], last[64], frequency[64], start[64], symbol[64];
  uint8_t slot_entry[256];  // the same look-up, spelled out
  uint8_t escape;           // the escape's entry, or 255
};

struct PairsDecoder {
  const PairsTable* table;
  unsigned groups;         // 1, 2 or 4
  const uint8_t* words;    // the next word
  const uint8_t* escapes;  // the next escape
  const uint8_t* escapes_end;
  bool escapes_overrun;  // an escape was needed past escapes_end; 0 was used
  alignas(64) uint32_t x[kMaxLanes];
};

struct PairsEncoder {
  // Of each entry: frequency, and start in the upper half; and 1 / frequency, short of it by
  // kReciprocalBias, so that a quotient by it is never too large and at most 1 too small.
  alignas(64) uint32_t entry[16];
  alignas(64) float reciprocal[16];
  alignas(64) uint8_t entry_of[256];  // symbol -> entry; the escape's for all others
  uint16_t rows;                      // bit r: symbols 16 r ... 16 r + 15 have an entry
  uint8_t escape;                     // the escape's entry, or 255
  unsigned groups;
  uint8_t* words;    // words are written downwards from here
  uint8_t* escapes;  // likewise
  alignas(64) uint32_t x[kMaxLanes];
};

inline constexpr unsigned kWindowSymbols = 16;

struct Kernels {
  const char* name;

  void (*checksum)(ChecksumState& state, const uint8_t* bytes, size_t stripes);

  // 16-bit items, rotated left by one: to numbers, and to planes and back.
  void (*load_keys16)(const uint8_t* items, size_t n, uint16_t* keys);
  // The same of the distance between two bfloat16 items, 0 if that is no number, and at least 2.
  // Subnormal numbers, and distances, count as zeros.
  void (*load_distances16)(const uint8_t* base, const uint8_t* items, size_t n, uint16_t* keys);
  void (*split16)(const uint8_t* items, size_t n, uint8_t* high, uint8_t* low);
  void (*merge16)(const uint8_t* high, const uint8_t* low, size_t n, uint8_t* items);

  // counts[s] += occurrences of s. Quickest where nearly all symbols are among the
  // kWindowSymbols from `window` on.
  void (*histogram)(const uint8_t* plane, size_t n, uint8_t window, uint32_t counts[256]);

  const MagnitudeKernels* magnitudes;

  // Decodes whole steps into `plane` while steps are left and decoder.words <= limit; returns
  // the steps left. kWordMargin bytes after `limit` must be readable.
  size_t (*pairs_decode)(PairsDecoder& decoder, const uint8_t* limit, uint8_t* plane, size_t steps);

  // The same, with the symbols as high plane and `low` as low plane of 16-bit rotated items.
  size_t (*pairs_decode16)(PairsDecoder& decoder, const uint8_t* limit, const uint8_t* low,
                           uint8_t* items, size_t steps);

  // Encodes whole steps from the last one to the first. A step writes at most 32 words and 64
  // escapes a group; the room below encoder.words and encoder.escapes is the caller's to give,
  // and kEncodeMargin bytes more below the words.
  void (*pairs_encode)(PairsEncoder& encoder, const uint8_t* plane, size_t steps);

  // Writes the codes of symbols to the sink, kPackSymbols at a time, while so many are left and it
  // has kPackRoom; returns how many it wrote. Null where the loops of huffman/encode.cpp, which
  // give the same bytes, are as fast.
  size_t (*huffman_pack)(BitSink& sink, const uint16_t entries[kPackEntries],
                         const uint8_t* symbols, size_t n);

  // scales[i] = row + columns[i] 2^step, but at least 0 and at most `most`. 0 <= row <= most <
  // 2^15, and the terms have 15 bits and a sign.
  void (*add_columns)(const int16_t* columns, unsigned step, int row, int most, size_t n,
                      uint16_t* scales);

  // How many bits of two strings of 8 n bytes differ.
  size_t (*differing_bits)(const uint8_t* a, const uint8_t* b, size_t n);

  const TileKernels* tiles;
  const DeltaKernels* delta;
};

extern const Kernels kScalarKernels;
#if defined(__x86_64__) || defined(_M_X64)
extern const Kernels kAvx2Kernels;         // AVX2
extern const Kernels kAvx512Kernels;       // AVX-512 F, BW, DQ, VL
extern const Kernels kAvx512Vbmi2Kernels;  // and VBMI, VBMI2: tiles
#endif
#if defined(__AARCH64EL__) || defined(_M_ARM64)
extern const Kernels kNeonKernels;  // the baseline of little-endian AArch64
#endif
#if defined(__wasm_simd128__)
extern const Kernels kSimd128Kernels;  // the vectors of WebAssembly
#endif

// The kernels in use: the best that the processor has, or what BF16CODECS_ISA names.
const Kernels& kernels();

}  // namespace bf16codecs
