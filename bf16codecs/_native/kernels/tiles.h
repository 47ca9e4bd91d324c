#pragma once

// The tables, states and functions of the kernels of the tiles mode (docs/format_tiles.md).
//
// A block is decoded in tiles: `order` sorts a tile's items by table class, `decode` gets the
// symbols in that order from the shared words, and `restore` puts them back in the order of the
// items and adds scales, raw bits and escapes. An encoder does `order`, `arrange` and `encode`.

#include <cstddef>
#include <cstdint>

#include "kernels/lanes.h"

namespace bf16codecs {

inline constexpr size_t kTileItems = 8192;
// The last tile has the rest: less than one and a half tiles, in whole records.
inline constexpr size_t kMaxTileItems = kTileItems + kTileItems / 2;
inline constexpr size_t kRecordItems = 64;
inline constexpr unsigned kStepItems = kLanesPerGroup;  // items of a step: they share a table
inline constexpr unsigned kTileClasses = 4;
inline constexpr unsigned kTileEntries = 32;     // the last one is the escape
inline constexpr unsigned kMaxIntervalLog2 = 5;  // n of an interval
inline constexpr unsigned kScaleFractions = 16;  // of an octave
inline constexpr int kSymbolOrigin = 208;        // the lowest symbol of the scale's own exponent
inline constexpr unsigned kMaxRawBits = 8;

// The vector kernels are written for these values.
static_assert(kRecordItems == 64 && kTileClasses == 4 && kScaleFractions == 16);

// The table class of an item, one of four, by its scale: the quarter of the octave that it is in.
static constexpr uint8_t class_of(uint16_t scale) {
  return static_cast<uint8_t>(scale % kScaleFractions / (kScaleFractions / kTileClasses));
}

static constexpr size_t record_size(unsigned raw_bits) {
  return kRecordItems / 8 * raw_bits;
}

// Bytes past the end of a tile's symbols that some kernels may read or overwrite.
inline constexpr size_t kTileSlack = 64;

// The entries and ranks of the slots of a table class (docs/format_tiles.md, "Table classes"). Slot
// p of bucket b belongs to entry b, with rank p, if p < threshold[b]; otherwise to entry alias[b],
// with rank p + shift[b]. Thresholds are 0 ... 128.
struct AliasTable {
  uint16_t threshold[kTileEntries], alias[kTileEntries], shift[kTileEntries];

  // The frequencies have the sum 4096, and none of them is 4096.
  explicit AliasTable(const uint16_t frequency[kTileEntries]);
};

// The table of one table class, for decoding. Words of 16 bits hold it: f < 4096 and n <= 5 need 12
// and 3 bits, thresholds 8, and ranks, which are below f, 12.
struct TileTable {
  alignas(64) uint16_t alias[kTileEntries];    // by bucket: threshold << 8 | alias
  alignas(64) uint16_t shift[kTileEntries];    // by bucket
  alignas(64) uint16_t coder[kTileEntries];    // by entry: n << 13 | f
  alignas(64) uint16_t symbols[kTileEntries];  // by entry: (2^n - 1) << 8 | base
  // Made by spread_buckets(): by bucket, for its own entry [0] and for its alias [1].
  alignas(64) uint16_t threshold[kTileEntries];
  alignas(64) uint16_t bucket_frequency[2][kTileEntries];  // f << 4
  alignas(64) uint16_t bucket_symbols[2][kTileEntries];    // base << 8 | n
  // Made by spell_out_slots(): by slot, entry << 27 | n << 24 | rank << 12 | f.
  uint32_t slot[4096];
};

inline constexpr unsigned kTilePieces = 2 * kTileEntries;
inline constexpr unsigned kPieceSpan = 32;  // positions that share an entry of piece_at

// The table of one table class, for encoding.
//
// An encoder needs the slot of rank r of entry j: the inverse of the alias table. Rank r of entry j
// has the position P = first[j] + r, 0 <= P < 4096. Scalar code looks the slot up in a table of all
// positions. Vector code that has permutes searches for it instead: a **piece** is a range of
// positions whose slots belong to one entry and one bucket, so that they differ from 32 P by a
// constant. An entry has at most one piece in its own bucket, and then one in each bucket that has
// it as alias, by ascending positions: at most 64 in all. P's piece is the first one from
// max(pieces[j], piece_at[P div 32]) on with P <= last[k], which is at most `steps` further.
struct TileCodeTable {
  alignas(64) uint8_t entry_of[256];           // by symbol
  alignas(64) uint16_t coder[kTileEntries];    // by entry: n << 13 | f
  alignas(64) float reciprocal[kTileEntries];  // by entry: 4096 / f (1 - kReciprocalBias)
  alignas(64) uint16_t first[kTileEntries];
  // Made by cut_pieces().
  alignas(64) uint16_t pieces[kTileEntries];  // by entry: its first piece
  alignas(64) uint8_t piece_at[4096 / kPieceSpan];
  alignas(64) uint16_t slot_offset[kTilePieces];  // P's slot is (32 P + slot_offset[k]) mod 2^16
  alignas(64) uint16_t last[kTilePieces + kTileEntries];  // 65535 past the last piece
  unsigned steps;
  // Made by spell_out_code_slots(): P's slot is slot[P].
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

// The order of a tile's items by table class. mask[i][c] shows which of the items of record i are
// in class c, and begin[c] where class c begins in the order.
struct TileOrder {
  uint64_t mask[kMaxTileItems / kRecordItems][kTileClasses];
  uint32_t begin[kTileClasses + 1];
  // Where the items of record i of class c begin in the order. Only AVX-512 fills it in, and leaves
  // noise past the last record.
  alignas(64) uint16_t first[kMaxTileItems / kRecordItems][kTileClasses];
  // How many items of class c are before each eighth of record i. Only AVX2 fills it in.
  alignas(32) uint8_t rank[kMaxTileItems / kRecordItems][kTileClasses][8];
};

// The kind of keys that symbols and raw bits are taken from, or put together to.
struct TileShape {
  unsigned classes;     // 1 or 4
  unsigned raw_bits;    // R
  uint16_t key_mask;    // 2^(key bits) - 1
  uint16_t first, end;  // lo and hi; for encoding
  bool to_items;        // make items of 16 bits, keys rotated right by one bit; for decoding
};

// The escapes of a block that is decoded.
struct TileEscapes {
  const uint8_t* next;  // u16 each
  const uint8_t* end;
  bool overrun;  // one was needed past the end, and 0 took its place
};

// A decoded tile of n items, whole records, to be restored.
struct TileItems {
  const TileOrder* order;  // its contents are not read where there is one class
  const uint8_t* symbols;  // n, in the tile's order, and kTileSlack bytes that may be read
  const uint16_t* scales;
  const uint8_t* records;
  size_t n;
  uint8_t* out;  // 2 n bytes
};

// A kernel reads and writes the memory named here, and nothing before or after it; kTileSlack holds
// only where it is named. What it writes must not overlap anything else.
struct TileKernels {
  // Orders n items, whole records, by class_of() their scales.
  void (*order)(const uint16_t* scales, size_t n, TileOrder& order);

  // Decodes steps, a multiple of the groups, to kStepItems symbols each. `classes` has the table of
  // each step. Reads at most 2 kStepItems bytes of words a step, which may be more than it uses: a
  // step loads the words that all its lanes could need.
  void (*decode)(TileDecoder& decoder, const TileTable tables[], const uint8_t* classes,
                 size_t steps, uint8_t* symbols);

  // Prepares the parts of a table that `decode` reads besides its first four rows; null if there
  // are none.
  void (*prepare)(const AliasTable& alias, TileTable& table);

  // Puts a tile together: symbols, scales and records to keys, or items, of two bytes.
  void (*restore)(const TileShape& shape, const TileItems& items, TileEscapes& escapes);

  // Decodes a tile while it restores the one before. Null where this is not faster than one after
  // the other.
  void (*decode_restore)(TileDecoder& decoder, const TileTable tables[], const uint8_t* classes,
                         size_t steps, uint8_t* symbols, const TileShape& shape,
                         const TileItems& before, TileEscapes& escapes);

  // Takes a tile apart: n keys, whole records, to symbols in the tile's order, and to records. May
  // overwrite up to kTileSlack bytes after the symbols. Does not read `order` where there is one
  // class. Appends the keys of escapes, for which there is room for n, and returns their end.
  uint16_t* (*arrange)(const TileShape& shape, const TileOrder& order, const uint16_t* keys,
                       const uint16_t* scales, size_t n, uint8_t* symbols, uint8_t* records,
                       uint16_t* escapes);

  // Encodes steps, a multiple of the groups, from the last to the first. May read up to kTileSlack
  // bytes after the symbols. A step writes at most 32 words, and may overwrite kEncodeMargin bytes
  // below them.
  void (*encode)(TileEncoder& encoder, const TileCodeTable tables[], const uint8_t* classes,
                 size_t steps, const uint8_t* symbols);

  // Prepares the part of a table by which `encode` finds slots.
  void (*prepare_code)(const AliasTable& alias, TileCodeTable& table);
};

// The definition. Other instruction sets use its functions where they have none of their own.
extern const TileKernels kScalarTileKernels;

}  // namespace bf16codecs
