#pragma once

// What the kernels of the difference mode work on (docs/format_differences.md).

#include <cstddef>
#include <cstdint>

#include "kernels/delta_entries.h"
#include "kernels/lanes.h"

namespace bf16codecs {

// How items have classes and numbers.
struct DeltaShape {
  int origin;         // within +-16383
  unsigned shift;     // at most 4
  unsigned places;    // 1 to kDeltaPlaces
  unsigned fraction;  // bits below the exponent, with the sign; of items of 16 bits 8 or 11
  unsigned near;      // the first class whose numbers have signs
  unsigned near_raw;  // r of these classes, at most kMaxDeltaRaw
  alignas(64) uint8_t class_of[kDeltaPlaces];
};

// The tables of all classes of a section; [16 c + j] is of entry j of class c. The f of a class
// have the sum 4096; each is a multiple of 2^(q - 4), and that of the escape is at least 1, so that
// none is 4096.
struct DeltaTables {
  unsigned classes;
  alignas(64) uint8_t raw[kDeltaClasses];                     // r
  alignas(64) uint16_t start[kDeltaClasses * kDeltaEntries];  // the sum of f before the entry
  alignas(64) uint16_t coder[kDeltaClasses * kDeltaEntries];  // q << 12 | f
  // By spread_search(): `start` of the entries that a search by halves compares with: of 8; of 4
  // and 12; and so on.
  alignas(64) uint16_t search1[kDeltaClasses], search2[2 * kDeltaClasses],
      search4[4 * kDeltaClasses], search8[8 * kDeltaClasses];
  // By spell_out_slots(), otherwise null: of slot a of class c, [4096 c + a] is
  // entry << 28 | q << 24 | rank << 12 | f.
  const uint32_t* slots;
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

// A kernel reads and writes what is said here, and nothing before or after it. What it writes must
// not overlap anything else, but `items` may be `base`. Classes that a kernel takes are those of
// the shape's places, or of the tables; scales may be anything.
struct DeltaKernels {
  // Classes of n items whose base's items have 16 bits.
  void (*classify16)(const DeltaShape& shape, const uint8_t* base, const uint16_t* scales, size_t n,
                     uint8_t* classes);

  // Coded numbers of n items of 16 bits in these classes, by relation 0, with low = 0.
  void (*subtract16)(const DeltaShape& shape, const uint8_t* base, const uint8_t* items,
                     const uint16_t* scales, const uint8_t* classes, size_t n, uint16_t* numbers);

  // The inverse.
  void (*add16)(const DeltaShape& shape, const uint8_t* base, const uint16_t* numbers,
                const uint16_t* scales, const uint8_t* classes, size_t n, uint8_t* items);

  // Decodes steps, a multiple of the groups, to coded numbers, and to masks of the items that are
  // escapes, whose numbers are 0. Reads nothing past 64 bytes of words for each step, which may be
  // more than it uses.
  void (*decode)(DeltaDecoder& decoder, const DeltaTables& tables, const uint8_t* classes,
                 size_t steps, uint16_t* numbers, uint32_t* escapes);

  // Prepares what `decode` reads of tables besides r, start and coder, which are enough for
  // `encode`. Takes memory for so many slots of each class, which the tables then point to.
  void (*prepare)(DeltaTables& tables, uint32_t* slots);
  size_t class_slots;

  // Encodes steps, a multiple of the groups, from the last to the first, and gives the masks of
  // escapes. A step writes at most 32 words, and kEncodeMargin bytes below them may be overwritten.
  void (*encode)(DeltaEncoder& encoder, const DeltaTables& tables, const uint8_t* classes,
                 const uint16_t* numbers, size_t steps, uint32_t* escapes);
};

// The definition, and what other instruction sets take where they have nothing better.
extern const DeltaKernels kScalarDeltaKernels;

}  // namespace bf16codecs
