#pragma once

// The kernels: pure loops over memory that neither allocate nor report. The scalar functions
// (kernels/scalar.cpp) are the definition; every other instruction set gives the same bytes.
// Preconditions are stated here and checked by the callers.

#include <cstddef>
#include <cstdint>

namespace bf16codecs {

// Sums of docs/format.md, "Checksum", before folding.
struct ChecksumState {
  uint64_t a[16] = {};
  uint64_t c[16] = {};
};

inline constexpr unsigned kLanesPerGroup = 32;
inline constexpr unsigned kMaxGroups = 4;
inline constexpr unsigned kMaxLanes = kLanesPerGroup * kMaxGroups;
// Symbols that a group of lanes decodes in a step of the pairs mode.
inline constexpr unsigned kPairSymbols = 2 * kLanesPerGroup;

// Bytes that a rANS decoder may read behind the word it is at: the words that a step of all
// lanes can use, and one vector more.
inline constexpr size_t kWordMargin = 2 * kMaxLanes + 64;

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
  unsigned groups;           // 1, 2 or 4
  const uint8_t* words;      // the next word
  const uint8_t* escapes;    // the next escape
  const uint8_t* escapes_end;
  bool escapes_overrun;      // an escape was wanted behind escapes_end; 0 was used
  alignas(64) uint32_t x[kMaxLanes];
};

struct PairsEntry {
  uint32_t frequency, start;
};

struct PairsEncoder {
  PairsEntry entry[16];
  uint8_t entry_of[256];  // symbol -> entry
  uint8_t escape;         // the escape's entry, or 255
  unsigned groups;
  uint8_t* words;    // words are written downwards from here
  uint8_t* escapes;  // likewise
  alignas(64) uint32_t x[kMaxLanes];
};

struct Kernels {
  const char* name;

  void (*checksum)(ChecksumState& state, const uint8_t* bytes, size_t stripes);

  // 16-bit items, rotated left by one, to planes and back.
  void (*split16)(const uint8_t* items, size_t n, uint8_t* high, uint8_t* low);
  void (*merge16)(const uint8_t* high, const uint8_t* low, size_t n, uint8_t* items);

  // counts[s] += occurrences of s.
  void (*histogram)(const uint8_t* plane, size_t n, uint32_t counts[256]);

  // Decodes whole steps into `plane` while steps are left and decoder.words <= limit; returns
  // the steps left. kWordMargin bytes behind `limit` must be readable.
  size_t (*pairs_decode)(PairsDecoder& decoder, const uint8_t* limit, uint8_t* plane,
                         size_t steps);

  // The same, with the symbols as high plane and `low` as low plane of 16-bit rotated items.
  size_t (*pairs_decode16)(PairsDecoder& decoder, const uint8_t* limit, const uint8_t* low,
                           uint8_t* items, size_t steps);

  // Encodes whole steps from the last one to the first. A step writes at most 64 words and 64
  // escapes a group; the room below encoder.words and encoder.escapes is the caller's to give.
  void (*pairs_encode)(PairsEncoder& encoder, const uint8_t* plane, size_t steps);
};

extern const Kernels kScalarKernels;

// The kernels in use: the best that the processor has, or what BF16CODECS_ISA names.
const Kernels& kernels();

}  // namespace bf16codecs
