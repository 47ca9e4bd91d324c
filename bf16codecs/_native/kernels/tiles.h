#pragma once

// What the kernels of the tiles mode work on (docs/format_tiles.md).

#include <cstddef>
#include <cstdint>

#include "kernels/lanes.h"

namespace bf16codecs {

inline constexpr size_t kTileItems = 8192;
// The last tile has what is left: less than one and a half, in whole records.
inline constexpr size_t kMaxTileItems = kTileItems + kTileItems / 2;
inline constexpr size_t kRecordItems = 64;
inline constexpr unsigned kStepItems = kLanesPerGroup;  // that are coded with one table
inline constexpr unsigned kTileClasses = 4;
inline constexpr unsigned kTileEntries = 32;  // the last one is the escape
inline constexpr unsigned kMaxIntervalLog2 = 5;
inline constexpr unsigned kScaleFractions = 16;  // of an octave
inline constexpr int kSymbolOrigin = 208;        // symbol of an item whose exponent is its scale's
inline constexpr unsigned kMaxRawBits = 8;

// Kernels of vectors take these for granted.
static_assert(kRecordItems == 64 && kTileClasses == 4 && kScaleFractions == 16);

// The table class, of four, of an item with this scale.
static constexpr uint8_t class_of(uint16_t scale) {
  return static_cast<uint8_t>(scale % kScaleFractions / (kScaleFractions / kTileClasses));
}

static constexpr size_t record_size(unsigned raw_bits) {
  return kRecordItems / 8 * raw_bits;
}

// Bytes that some kernels may read, or overwrite, past the end of symbols.
inline constexpr size_t kTileSlack = 64;

// Where the slots of a class belong: of bucket b those below threshold[b] to entry b, with their
// number as rank; the others to entry alias[b], with shift[b] more.
struct AliasTable {
  uint16_t threshold[kTileEntries], alias[kTileEntries], shift[kTileEntries];

  // The sum of the frequencies is 4096, and none of them is 4096.
  explicit AliasTable(const uint16_t frequency[kTileEntries]);
};

// One class's table for decoding.
struct TileTable {
  alignas(64) uint16_t alias[kTileEntries];    // of a bucket: threshold << 8 | alias
  alignas(64) uint16_t shift[kTileEntries];    // of a bucket
  alignas(64) uint16_t coder[kTileEntries];    // of an entry: n << 13 | f
  alignas(64) uint16_t symbols[kTileEntries];  // of an entry: (2^n - 1) << 8 | base
  // The same by buckets, of their own entries [0] and of their aliases [1]: spread_buckets().
  alignas(64) uint16_t threshold[kTileEntries];
  alignas(64) uint16_t bucket_frequency[2][kTileEntries];  // f << 4
  alignas(64) uint16_t bucket_symbols[2][kTileEntries];    // base << 8 | n
  // The same spelled out, by spell_out_slots(): entry << 27 | n << 24 | rank << 12 | f.
  uint32_t slot[4096];
};

inline constexpr unsigned kTilePieces = 2 * kTileEntries;
inline constexpr unsigned kPieceSpan = 32;  // positions that have a piece to begin with

// One class's table for encoding. Rank r of entry j has position P = first[j] + r. A piece is
// positions whose slots are of one entry and bucket: first those of the entry's own bucket, then
// those of each bucket that has it as alias. P's piece is the first one, from max(pieces[j],
// piece_at[P div 32]) on, with P <= last[k]; it is at most `steps` further.
struct TileCodeTable {
  alignas(64) uint8_t entry_of[256];           // of a symbol
  alignas(64) uint16_t coder[kTileEntries];    // of an entry: n << 13 | f
  alignas(64) float reciprocal[kTileEntries];  // 4096 / f, less kReciprocalBias of it
  alignas(64) uint16_t first[kTileEntries];
  // By cut_pieces().
  alignas(64) uint16_t pieces[kTileEntries];  // an entry's first one
  alignas(64) uint8_t piece_at[4096 / kPieceSpan];
  alignas(64) uint16_t place[kTilePieces];                // P's slot is (32 P + place[k]) mod 2^16
  alignas(64) uint16_t last[kTilePieces + kTileEntries];  // 65535 past the last piece
  unsigned steps;
  // The same spelled out, by spell_out_code_slots(): P's slot is slot[P].
  uint16_t slot[4096];
};

struct TileDecoder {
  unsigned groups;       // 1, 2 or 4
  const uint8_t* words;  // the next word
  alignas(64) uint32_t x[kMaxLanes];
};

struct TileEncoder {
  unsigned groups;
  uint8_t* words;  // words are written downwards from here
  alignas(64) uint32_t x[kMaxLanes];
};

// How the items of a tile are ordered by class: which items of each 64 are in which class, and
// where each class begins in the order.
struct TileOrder {
  uint64_t mask[kMaxTileItems / kRecordItems][kTileClasses];
  uint32_t begin[kTileClasses + 1];
  // Where each 64's items of a class begin in the order, if the kernels of a set use it; noise
  // where there are no items.
  alignas(64) uint16_t place[kMaxTileItems / kRecordItems][kTileClasses];
};

// What a tile's symbols and raw bits are taken from, or put together to.
struct TileShape {
  unsigned classes;     // 1 or 4
  unsigned raw_bits;    // R
  uint16_t key_mask;    // 2^(key bits) - 1
  uint16_t first, end;  // lo and hi; for encoding
  bool to_items;        // give items of 16 bits, which are keys rotated to the right; for decoding
};

// Escapes of a block that is decoded.
struct TileEscapes {
  const uint8_t* next;  // u16 each
  const uint8_t* end;
  bool overrun;  // one was needed past the end; 0 was used
};

// A decoded tile of n items, whole records, to be restored.
struct TileItems {
  const TileOrder* order;  // not read where there is one class
  const uint8_t* symbols;  // n, in the tile's order, and kTileSlack bytes that may be read
  const uint16_t* scales;
  const uint8_t* records;
  size_t n;
  uint8_t* out;  // 2 n bytes
};

// A kernel reads and writes what is said here, and nothing before or after it: kTileSlack is only
// where it is named. What it writes must not overlap anything else.
struct TileKernels {
  // Orders n items, whole records, by class_of() their scales.
  void (*order)(const uint16_t* scales, size_t n, TileOrder& order);

  // Decodes steps, a multiple of the groups, to kStepItems symbols each, in their order. Reads
  // nothing past two bytes of words for each symbol, which may be more than it uses. `classes` has
  // each step's table.
  void (*decode)(TileDecoder& decoder, const TileTable tables[], const uint8_t* classes,
                 size_t steps, uint8_t* symbols);

  // Prepares what `decode` reads of a table besides its first rows; null if that is nothing.
  void (*prepare)(const AliasTable& alias, TileTable& table);

  // Puts a tile together: symbols, scales and records to keys, or items, of two bytes.
  void (*restore)(const TileShape& shape, const TileItems& items, TileEscapes& escapes);

  // The two in one: decodes a tile while the one before it is restored. Null where this is no
  // quicker.
  void (*decode_restore)(TileDecoder& decoder, const TileTable tables[], const uint8_t* classes,
                         size_t steps, uint8_t* symbols, const TileShape& shape,
                         const TileItems& before, TileEscapes& escapes);

  // The inverse, of n items, whole records: keys to symbols, in their order, and records. Up to
  // kTileSlack bytes after the symbols may be overwritten. `order` is not read where there is one
  // class. Appends escapes, of which there is room for n, and returns their end.
  uint16_t* (*arrange)(const TileShape& shape, const TileOrder& order, const uint16_t* keys,
                       const uint16_t* scales, size_t n, uint8_t* symbols, uint8_t* records,
                       uint16_t* escapes);

  // Encodes steps, a multiple of the groups, from the last to the first. Up to kTileSlack bytes
  // after the symbols may be read. A step writes at most 32 words, and kEncodeMargin bytes below
  // them may be overwritten.
  void (*encode)(TileEncoder& encoder, const TileCodeTable tables[], const uint8_t* classes,
                 size_t steps, const uint8_t* symbols);

  // Prepares what `encode` reads of a table to find slots.
  void (*prepare_code)(const AliasTable& alias, TileCodeTable& table);
};

// The definition, and what other instruction sets take where they have nothing better.
extern const TileKernels kScalarTileKernels;

}  // namespace bf16codecs
