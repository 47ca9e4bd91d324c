// Alias tables (docs/format_tiles.md, "Table classes"), and the forms of them that kernels read.

#include "kernels/tiles_tables.h"

#include <algorithm>
#include <iterator>

namespace bf16codecs {
namespace {

constexpr unsigned kSlots = 4096;
constexpr unsigned kBucketSlots = kSlots / kTileEntries;

// The next entry, from `entry` on, that has slots to give away.
unsigned next_large(const uint16_t* frequency, unsigned entry) {
  while (entry < kTileEntries && frequency[entry] <= kBucketSlots) ++entry;
  return entry;
}

// The buckets that have an alias, in the order of the positions of the slots that they lend to it.
struct Lenders {
  unsigned n = 0;
  uint32_t bucket[kTileEntries];

  Lenders(const AliasTable& alias, const TileCodeTable& table) {
    for (unsigned b = 0; b < kTileEntries; ++b) {
      if (alias.threshold[b] == kBucketSlots) continue;
      // The position past the lent slots' last one, at most 4096; the bucket is below 256.
      const uint32_t end = table.first[alias.alias[b]] + alias.shift[b] + kBucketSlots;
      bucket[n++] = end << 8 | b;
    }
    // An entry's positions are a range, so that sorting by position sorts by entry first.
    std::sort(bucket, bucket + n);
    for (unsigned i = 0; i < n; ++i) bucket[i] &= 255;
  }
};

// Makes the pieces of all entries; returns how many there are.
unsigned make_pieces(const AliasTable& alias, TileCodeTable& table) {
  const Lenders lenders(alias, table);
  unsigned k = 0, lender = 0;
  // Appends the piece of bucket b that ends before p = end. Slot p has the position first + p. So
  // the slot of position P is 32 (P - first) + b, and slot_offset = b - 32 first modulo 2^16.
  const auto append = [&](unsigned b, unsigned first, unsigned end) {
    table.last[k] = static_cast<uint16_t>(first + end - 1);
    table.slot_offset[k++] = static_cast<uint16_t>(b - kTileEntries * first);
  };
  for (unsigned j = 0; j < kTileEntries; ++j) {
    table.pieces[j] = static_cast<uint16_t>(k);
    if (alias.threshold[j] != 0) append(j, table.first[j], alias.threshold[j]);
    for (; lender < lenders.n && alias.alias[lenders.bucket[lender]] == j; ++lender) {
      const unsigned b = lenders.bucket[lender];
      append(b, table.first[j] + alias.shift[b], kBucketSlots);
    }
  }
  return k;
}

// Makes the index of the pieces, and finds how far a search from it goes at most.
void index_pieces(unsigned pieces, TileCodeTable& table) {
  std::fill(table.last + pieces, table.last + std::size(table.last), uint16_t{UINT16_MAX});
  std::fill(table.slot_offset + pieces, table.slot_offset + kTilePieces, uint16_t{0});
  // piece_at[i] is the first piece that ends at position 32 i or later: no position from 32 i on
  // has an earlier one.
  unsigned at = 0;
  for (unsigned i = 0; i < std::size(table.piece_at); ++i) {
    while (table.last[at] < kPieceSpan * i) ++at;
    table.piece_at[i] = static_cast<uint8_t>(at);
  }
  // The first position of a piece is the farthest from where its search begins.
  table.steps = 0;
  for (unsigned k = 1, j = 0; k < pieces; ++k) {
    while (j + 1 < kTileEntries && table.pieces[j + 1] <= k) ++j;
    const unsigned begin = table.last[k - 1] + 1u;
    const unsigned from = std::max<unsigned>(table.pieces[j], table.piece_at[begin / kPieceSpan]);
    table.steps = std::max(table.steps, k - from);
  }
}

}  // namespace

AliasTable::AliasTable(const uint16_t frequency[kTileEntries]) {
  uint16_t rest[kTileEntries];
  for (unsigned j = 0; j < kTileEntries; ++j) {
    rest[j] = frequency[j];
    threshold[j] = kBucketSlots;
    alias[j] = static_cast<uint16_t>(j);
    shift[j] = 0;
  }
  unsigned giver = next_large(frequency, 0);
  for (unsigned s = 0; s < kTileEntries; ++s) {
    if (frequency[s] >= kBucketSlots) continue;
    // Entry s has fewer than 128 slots: the giver fills its bucket up. That may leave the giver
    // with fewer than 128, and then the next giver fills up its bucket. There is a giver wherever
    // one is needed, because the frequencies have the sum 32 x 128.
    for (unsigned b = s;;) {
      threshold[b] = rest[b];
      alias[b] = static_cast<uint16_t>(giver);
      rest[giver] = static_cast<uint16_t>(rest[giver] - (kBucketSlots - threshold[b]));
      shift[b] = static_cast<uint16_t>(rest[giver] - threshold[b]);
      if (rest[giver] >= kBucketSlots) break;
      b = giver;
      giver = next_large(frequency, giver + 1);
    }
  }
}

void spell_out_slots(const AliasTable& alias, TileTable& table) {
  for (unsigned slot = 0; slot < kSlots; ++slot) {
    const unsigned b = slot % kTileEntries, p = slot / kTileEntries;
    const bool is_primary = p < alias.threshold[b];
    const unsigned entry = is_primary ? b : alias.alias[b];
    const unsigned rank = is_primary ? p : p + alias.shift[b];
    const unsigned f = table.coder[entry] & 0x1FFF, n = table.coder[entry] >> 13;
    table.slot[slot] = entry << 27 | n << 24 | rank << 12 | f;
  }
}

void spread_buckets(const AliasTable& alias, TileTable& table) {
  for (unsigned b = 0; b < kTileEntries; ++b) {
    table.threshold[b] = alias.threshold[b];
    const unsigned entries[2] = {b, alias.alias[b]};
    for (unsigned k = 0; k < 2; ++k) {
      const unsigned coder = table.coder[entries[k]], symbols = table.symbols[entries[k]];
      table.bucket_frequency[k][b] = static_cast<uint16_t>(coder << 4);
      table.bucket_symbols[k][b] = static_cast<uint16_t>(symbols << 8 | coder >> 13);
    }
  }
}

void spell_out_code_slots(const AliasTable& alias, TileCodeTable& table) {
  for (unsigned b = 0; b < kTileEntries; ++b) {
    uint16_t* const primary = table.slot + table.first[b];
    uint16_t* const lent = table.slot + table.first[alias.alias[b]] + alias.shift[b];
    const unsigned threshold = alias.threshold[b];
    const auto slot = [&](unsigned p) { return static_cast<uint16_t>(kTileEntries * p + b); };
    for (unsigned p = 0; p < threshold; ++p) primary[p] = slot(p);
    for (unsigned p = threshold; p < kBucketSlots; ++p) lent[p] = slot(p);
  }
}

void cut_pieces(const AliasTable& alias, TileCodeTable& table) {
  index_pieces(make_pieces(alias, table), table);
}

}  // namespace bf16codecs
