#pragma once

// The loop that decodes Huffman streams (docs/format.md, "Huffman plane"): plain integer code, as
// fast on one instruction set as on another (docs/design_codecs.md, "Huffman").

#include <cstddef>
#include <cstdint>

#include "kernels/huffman_pack.h"

namespace bf16codecs {

// Bits of the stream that one look-up sees: no code is longer, so it decodes at least one symbol.
inline constexpr unsigned kLookupBits = kLongestCode;
inline constexpr unsigned kEntrySymbols = 6;

// All whole codes, at most kEntrySymbols, at the beginning of a window of bits: bits 0-7 how
// many bits they take, so that the entry itself can be the operand of a shift; bits 8-15 how many
// they are; bits 16-63 their symbols, the first highest. Planes are decoded from the end to the
// beginning: a little-endian store of the entry that ends where the plane's known part begins
// puts the symbols in place, and the rest where the next store goes.
using LookupEntry = uint64_t;
constexpr unsigned entry_count(LookupEntry entry) {
  return entry >> 8 & 255;
}

// A round of a stream is a refill and so many look-ups. Of a refill's 64 bits up to 7 were used
// before, and the lowest one marks how far the round went.
inline constexpr unsigned kRoundLookups = 5;
inline constexpr unsigned kRoundBits = kRoundLookups * kLookupBits;
static_assert(7 + kRoundBits < 64);

// A round decodes at most kRoundSymbols; its last store reaches two bytes further.
inline constexpr unsigned kRoundSymbols = kRoundLookups * kEntrySymbols;
inline constexpr unsigned kRoundRoom = kRoundSymbols + sizeof(LookupEntry) - kEntrySymbols;
// Where a stream has so many bits of the payload before it, a refill stays in the payload.
inline constexpr unsigned kRefillBits = 57;

struct HuffmanCursor {
  const uint8_t* in;  // the end of the byte that the next bit is in
  unsigned used;      // bits of that byte that were read before
  uint8_t* out;       // the end of what is left to decode
};

// Memory that the caller will use next. To have it in the cache by then, every round of eight
// streams fetches so many lines of it: what 16-bit items need for a round's symbols.
struct FetchAhead {
  struct Range {
    uintptr_t next = 0, end = 0;
  };
  Range ranges[2];  // one after the other
};
inline constexpr unsigned kFetchLines = 8;

// Decodes rounds of eight streams side by side, whose look-ups need not wait for each other, or of
// one. Before the last round, every stream must have kRoundRoom bytes of its part of the plane
// left, and kRefillBits + kRoundBits bits of the payload.
void huffman_rounds_of_8(const LookupEntry* entries, HuffmanCursor cursors[8], size_t rounds,
                         FetchAhead& ahead);
void huffman_rounds_of_1(const LookupEntry* entries, HuffmanCursor& cursor, size_t rounds);

}  // namespace bf16codecs
