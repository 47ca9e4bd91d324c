// The portable loop of the Huffman decoder; see kernels/huffman.h for the layout of its bits.

#include "kernels/huffman.h"

#include <bit>

#include "format/little_endian.h"
#include "kernels/fetch.h"
#include "kernels/kernels.h"

namespace bf16codecs {
namespace {

// The next bits of a stream, the first one highest. Bit 0 becomes a mark: it is never needed
// itself, as `used` and a round take at most 7 + 55 bits, and in the end its place is the number of
// bits that were used. That spares the loop a count of bits.
BF16CODECS_INLINE uint64_t refill(const uint8_t* in, unsigned used) {
  return (load_le<uint64_t>(in - 8) | 1) << used;
}

// How far ahead, in bytes, each stream is fetched: the processor's own prefetcher does not keep up
// with eight streams that run backwards. Fetching takes whole blocks of 65,536 values from 5.9 to
// 7.0 GB/s (docs/experiments.md, "Huffman").
constexpr ptrdiff_t kPayloadAhead = 384;

BF16CODECS_INLINE void fetch_some(FetchAhead& ahead) {
  FetchAhead::Range& range = ahead.ranges[ahead.ranges[0].next < ahead.ranges[0].end ? 0 : 1];
  if (range.next >= range.end) return;
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < kFetchLines; ++i) BF16CODECS_FETCH_L2(range.next + kCacheLine * i);
  range.next += kFetchLines * kCacheLine;
}

// Decodes rounds of n streams. All streams take each look-up level together: 0.46 to 0.48 cycles a
// symbol with eight of them, 0.62 with one stream after the other, because the processor's window
// is too short to reach the other streams. The levels are unrolled: 0.48 cycles instead of 0.70
// (docs/experiments.md, "Huffman").
template <unsigned n>
BF16CODECS_INLINE void decode_rounds(const LookupEntry* entries, HuffmanCursor* cursors,
                                     size_t rounds, FetchAhead* ahead) {
  const uint8_t* in[n];
  uint8_t* out[n];
  uint64_t bits[n];
  for (unsigned k = 0; k < n; ++k) {
    in[k] = cursors[k].in;
    out[k] = cursors[k].out;
    bits[k] = refill(in[k], cursors[k].used);
  }
  for (; rounds > 0; --rounds) {
    if (n > 1) fetch_some(*ahead);
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < kRoundLookups; ++i) {
      BF16CODECS_UNROLL
      for (unsigned k = 0; k < n; ++k) {
        const LookupEntry entry = entries[bits[k] >> (64 - kLookupBits)];
        store_le(out[k] - 8, entry);
        bits[k] <<= entry & 63;
        out[k] -= entry_count(entry);
      }
    }
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      // The mark is in bits[k], so the number is not zero; the highest bit is or-ed because the
      // compiler does not know that, and would test for zero.
      const unsigned used = static_cast<unsigned>(std::countr_zero(bits[k] | uint64_t{1} << 63));
      in[k] -= used / 8;
      bits[k] = refill(in[k], used % 8);
      if (n > 1) BF16CODECS_FETCH_L1(reinterpret_cast<uintptr_t>(in[k]) - kPayloadAhead);
    }
  }
  for (unsigned k = 0; k < n; ++k) {
    const unsigned used = static_cast<unsigned>(std::countr_zero(bits[k] | uint64_t{1} << 63));
    cursors[k] = {in[k] - used / 8, used % 8, out[k]};
  }
}

}  // namespace

void huffman_rounds_of_8(const LookupEntry* entries, HuffmanCursor cursors[8], size_t rounds,
                         FetchAhead& ahead) {
  decode_rounds<8>(entries, cursors, rounds, &ahead);
}

void huffman_rounds_of_1(const LookupEntry* entries, HuffmanCursor& cursor, size_t rounds) {
  decode_rounds<1>(entries, &cursor, rounds, nullptr);
}

}  // namespace bf16codecs
