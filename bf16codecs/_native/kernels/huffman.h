#pragma once

// The loop that decodes Huffman streams (docs/format.md, "Huffman plane"). It is plain integer code
// for all processors: a variant with BMI2 was no faster (docs/experiments.md, "Huffman").
//
// A stream is read from its end to its beginning, so that its symbols come out last first. Its
// unread bits are kept at the top of a 64-bit number, the next one highest: the top kLookupBits are
// the index of a look-up, and a shift to the left drops what it used.

#include <cstddef>
#include <cstdint>

#include "kernels/huffman_pack.h"

namespace bf16codecs {

// Bits of the stream that one look-up sees. No code is longer, so each look-up decodes at least one
// symbol.
inline constexpr unsigned kLookupBits = kLongestCode;
inline constexpr unsigned kEntrySymbols = 6;

// The whole codes, at most kEntrySymbols, at the beginning of a window of kLookupBits bits:
//
//   bits    63 - 56       55 - 48   ...   23 - 16   15 - 8           7 - 0
//           first symbol  second    ...   sixth     number of codes  bits that they take
//
// The entry itself can be the operand of a shift, which looks at its low 6 bits alone. The first
// symbol is the last one of the plane that is not decoded yet. So an 8-byte little-endian store
// that ends where the decoded part of the plane begins puts the symbols in place; the bytes below
// them are noise, where the next store goes.
using LookupEntry = uint64_t;
constexpr unsigned entry_count(LookupEntry entry) {
  return entry >> 8 & 255;
}

// A round of a stream is a refill of 64 bits and this many look-ups. Up to 7 of the 64 bits were
// used before, because refills begin at bytes, and the lowest bit is a mark that shows how far the
// round went. Five look-ups of 11 bits are as fast as four of 12, with half the table
// (docs/design_codecs.md).
inline constexpr unsigned kRoundLookups = 5;
inline constexpr unsigned kRoundBits = kRoundLookups * kLookupBits;
static_assert(7 + kRoundBits < 64);

// A round decodes at most kRoundSymbols, and its last store reaches two bytes further down: an
// entry's counts.
inline constexpr unsigned kRoundSymbols = kRoundLookups * kEntrySymbols;
inline constexpr unsigned kRoundRoom = kRoundSymbols + sizeof(LookupEntry) - kEntrySymbols;
// A refill loads the 8 bytes that end with the next bit's byte. It stays in the payload if at least
// this many bits of it are left: 57 bits touch eight bytes.
inline constexpr unsigned kRefillBits = 57;

struct HuffmanCursor {
  const uint8_t* in;  // the end of the byte that the next bit is in
  unsigned used;      // bits of that byte that were read before
  uint8_t* out;       // the end of the symbols that are left to decode
};

// Memory that the caller will use next. Every round of eight streams fetches kFetchLines lines of
// it, so that it is in the cache by then: eight times 30 symbols at most, as items of 16 bits, are
// about that many lines.
struct FetchAhead {
  struct Range {
    uintptr_t next = 0, end = 0;
  };
  Range ranges[2];  // fetched one after the other
};
inline constexpr unsigned kFetchLines = 8;

// Decode rounds of eight streams side by side, whose look-ups do not wait for each other, or of one
// stream. When the last round begins, every stream must have kRoundRoom bytes of its part of the
// plane left, and kRefillBits + kRoundBits bits of the payload.
void huffman_rounds_of_8(const LookupEntry* entries, HuffmanCursor cursors[8], size_t rounds,
                         FetchAhead& ahead);
void huffman_rounds_of_1(const LookupEntry* entries, HuffmanCursor& cursor, size_t rounds);

}  // namespace bf16codecs
