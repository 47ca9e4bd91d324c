#pragma once

// The tables, states and functions of the kernels of the difference mode
// (docs/format_differences.md). `classify16` finds the items' classes by those of the base,
// `decode` gets coded numbers from the shared words, and `add16` adds them to the base. An encoder
// does `classify16`, `subtract16` and `encode`.

#include <cstddef>
#include <cstdint>

#include "kernels/delta_entries.h"
#include "kernels/lanes.h"

namespace bf16codecs {

// How items get classes and numbers.
struct DeltaShape {
  int origin;         // within +-16383
  unsigned shift;     // at most 4
  unsigned places;    // 1 to kDeltaPlaces
  unsigned fraction;  // Fw: bits below the exponent, and the sign; of 16-bit items 8 or 11
  unsigned near;      // the first class whose numbers have signs
  unsigned near_raw;  // r of these classes, at most kMaxDeltaRaw
  alignas(64) uint8_t class_of[kDeltaPlaces];
};

// The tables of all classes of a section; [16 c + j] belongs to entry j of class c. The frequencies
// of a class have the sum 4096. Each is a multiple of 2^(q - 4), by which one word is enough for a
// lane, and the escape's is at least 1, so that none is above 4095, 12 bits.
struct DeltaTables {
  unsigned classes;
  alignas(64) uint8_t raw[kDeltaClasses];                     // r, by class
  alignas(64) uint16_t start[kDeltaClasses * kDeltaEntries];  // the sum of f before the entry
  alignas(64) uint16_t coder[kDeltaClasses * kDeltaEntries];  // q << 12 | f
  // Made by spread_search(): the starts that a binary search compares with. search1 has that of
  // entry 8 of each class, search2 those of entries 4 and 12, and so on.
  alignas(64) uint16_t search1[kDeltaClasses], search2[2 * kDeltaClasses],
      search4[4 * kDeltaClasses], search8[8 * kDeltaClasses];
  // Made by spell_out_slots(), otherwise null: slot a of class c is [4096 c + a],
  // entry << 28 | rank << 16 | q << 12 | f.
  const uint32_t* slots;
  // Made by spell_out_entries(): entry j of class c is entries[16 c + j], entry << 28 | start << 16
  // | q << 12 | f, and that of slot a of class c is entries[entry_at[4096 c + a]].
  const uint32_t* entries;
  const uint8_t* entry_at;
};

struct DeltaDecoder {
  unsigned groups;       // 1, 2 or 4
  const uint8_t* words;  // the next word
  alignas(64) uint32_t x[kMaxLanes];
};

struct DeltaEncoder {
  unsigned groups;
  uint8_t* words;  // words are written downwards from here
  alignas(64) uint32_t x[kMaxLanes];
};

// A kernel reads and writes the memory named here, and nothing before or after it. What it writes
// must not overlap anything else, except that `items` may be `base`. Classes must be ones that the
// shape's places, or the tables, have; scales may be anything.
struct DeltaKernels {
  // Finds the classes of n items by those of the base, which have 16 bits.
  void (*classify16)(const DeltaShape& shape, const uint8_t* base, const uint16_t* scales, size_t n,
                     uint8_t* classes);

  // Makes coded numbers of n items of 16 bits in these classes, by relation 0 and with low = 0. A
  // number of more than 16 bits becomes 65535: that is an escape whatever r is.
  void (*subtract16)(const DeltaShape& shape, const uint8_t* base, const uint8_t* items,
                     const uint16_t* scales, const uint8_t* classes, size_t n, uint16_t* numbers);

  // Does the inverse: makes items of numbers.
  void (*add16)(const DeltaShape& shape, const uint8_t* base, const uint16_t* numbers,
                const uint16_t* scales, const uint8_t* classes, size_t n, uint8_t* items);

  // Decodes steps, a multiple of the groups, to coded numbers, and to a mask a step of the items
  // that are escapes, whose numbers are 0. Reads at most 64 bytes of words a step, which may be
  // more than it uses: a step loads the words that all its lanes could need.
  void (*decode)(DeltaDecoder& decoder, const DeltaTables& tables, const uint8_t* classes,
                 size_t steps, uint16_t* numbers, uint32_t* escapes);

  // Prepares the parts of tables that `decode` reads besides raw, start and coder, which are enough
  // for `encode`. The caller gives memory for `class_slots` slots of each class, which lives as
  // long as the tables.
  void (*prepare)(DeltaTables& tables, uint32_t* slots);
  size_t class_slots;

  // Encodes steps, a multiple of the groups, from the last to the first, and writes the mask of
  // each step's escapes. A step writes at most 32 words, and may overwrite kEncodeMargin bytes
  // below them.
  void (*encode)(DeltaEncoder& encoder, const DeltaTables& tables, const uint8_t* classes,
                 const uint16_t* numbers, size_t steps, uint32_t* escapes);
};

// The definition. Other instruction sets use its functions where they have none of their own.
extern const DeltaKernels kScalarDeltaKernels;

}  // namespace bf16codecs
