#include "huffman.h"

#include <bit>

#include "../format.h"
#include "kernels.h"

namespace bf16codecs {
namespace {

// The bits from the cursor on, the first highest. The lowest one is a mark: in the end, it tells
// how many bits were used.
BF16CODECS_INLINE uint64_t refill(const uint8_t* in, unsigned used) {
  return (load_le<uint64_t>(in - 8) | 1) << used;
}

template <unsigned n>
BF16CODECS_INLINE void decode_rounds(const LookupEntry* entries, HuffmanCursor* cursors,
                                     size_t rounds) {
  const uint8_t* in[n];
  uint8_t* out[n];
  uint64_t bits[n];
  for (unsigned k = 0; k < n; ++k) {
    in[k] = cursors[k].in;
    out[k] = cursors[k].out;
    bits[k] = refill(in[k], cursors[k].used);
  }
  for (; rounds > 0; --rounds) {
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
      // The highest bit is or-ed to spare a test for zero.
      const unsigned used = static_cast<unsigned>(std::countr_zero(bits[k] | uint64_t{1} << 63));
      in[k] -= used / 8;
      bits[k] = refill(in[k], used % 8);
    }
  }
  for (unsigned k = 0; k < n; ++k) {
    const unsigned used = static_cast<unsigned>(std::countr_zero(bits[k] | uint64_t{1} << 63));
    cursors[k] = {in[k] - used / 8, used % 8, out[k]};
  }
}

}  // namespace

void huffman_rounds_of_8(const LookupEntry* entries, HuffmanCursor cursors[8], size_t rounds) {
  decode_rounds<8>(entries, cursors, rounds);
}

void huffman_rounds_of_1(const LookupEntry* entries, HuffmanCursor& cursor, size_t rounds) {
  decode_rounds<1>(entries, &cursor, rounds);
}

}  // namespace bf16codecs
