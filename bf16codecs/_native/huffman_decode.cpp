#include "huffman.h"

#include <algorithm>
#include <bit>

#include "errors.h"
#include "format.h"
#include "huffman_code.h"
#include "huffman_layout.h"
#include "huffman_table.h"

// A stream is written from its beginning to its end and read from its end to its beginning, so
// symbols come out last first. That spares the reader every shift but two a look-up: see
// huffman_table.h.

namespace bf16codecs {
namespace {

constexpr unsigned kLookupsPerRound = 5;
constexpr size_t kRoundBits = kLookupsPerRound * kLookupBits;
// A refill has up to 7 bits that were used before, and a mark below what is used.
static_assert(7 + kRoundBits < 64);

// A round may begin where kRoundRoom bytes of the stream's part of the plane are undecoded, and
// decodes at most kRoundSymbols of them: its last store reaches two bytes further.
constexpr size_t kRoundSymbols = kLookupsPerRound * kEntrySymbols;
constexpr size_t kRoundRoom = kRoundSymbols + sizeof(LookupEntry) - kEntrySymbols;
// And where there are so many bits between the beginning of the payload and the stream's
// position: the word that ends with the position's byte is then in the payload.
constexpr size_t kRefillBits = 57;

struct Stream {
  size_t bits_begin, bits;        // in the payload: bits_begin + what is left to read
  size_t symbols_begin, symbols;  // in the plane: symbols_begin + what is left to decode

  bool has_round() const {
    return symbols - symbols_begin >= kRoundRoom && bits >= kRefillBits;
  }
  size_t safe_rounds() const {
    if (!has_round()) return 0;
    return std::min((symbols - symbols_begin - kRoundRoom) / kRoundSymbols,
                    (bits - kRefillBits) / kRoundBits) + 1;
  }
};

struct Decoder {
  const uint8_t* payload;
  size_t size;
  const LookupTable* table;
  uint8_t* plane;
};

// Rounds of all of n streams side by side, whose look-ups need not wait for each other. Every
// stream must have so many safe rounds.
template <unsigned n>
inline void decode_rounds(const Decoder& d, Stream* streams, size_t rounds) {
  const LookupEntry* const entries = d.table->entries();
  const uint8_t* in[n];  // the end of the byte that a stream is at
  unsigned used[n];      // bits of that byte that were read before
  uint8_t* out[n];       // the end of what is left to decode
  for (unsigned k = 0; k < n; ++k) {
    in[k] = d.payload + (streams[k].bits + 7) / 8;
    used[k] = static_cast<unsigned>(-streams[k].bits & 7);
    out[k] = d.plane + streams[k].symbols;
  }
  for (; rounds > 0; --rounds) {
    // The bits to read, the first highest; the lowest one is a mark that tells in the end how
    // many were used.
    uint64_t bits[n];
    for (unsigned k = 0; k < n; ++k) bits[k] = (load_le<uint64_t>(in[k] - 8) | 1) << used[k];
    for (unsigned i = 0; i < kLookupsPerRound; ++i) {
      for (unsigned k = 0; k < n; ++k) {
        const LookupEntry entry = entries[bits[k] >> (64 - kLookupBits)];
        store_le(out[k] - 8, entry);
        bits[k] <<= entry & 63;
        out[k] -= entry_count(entry);
      }
    }
    for (unsigned k = 0; k < n; ++k) {
      const unsigned read = static_cast<unsigned>(std::countr_zero(bits[k]));
      in[k] -= read / 8;
      used[k] = read % 8;
    }
  }
  for (unsigned k = 0; k < n; ++k) {
    streams[k].bits = static_cast<size_t>(in[k] - d.payload) * 8 - used[k];
    streams[k].symbols = static_cast<size_t>(out[k] - d.plane);
  }
}

// The 64 bits that end with bit `bits` - 1 of the payload, zeros before the first.
uint64_t bits_before(const Decoder& d, size_t bits) {
  const size_t end = (bits + 7) / 8;
  uint64_t word = 0;
  if (end >= 8) {
    word = load_le<uint64_t>(d.payload + end - 8);
  } else {
    for (size_t i = 0; i < end; ++i) word |= uint64_t{d.payload[i]} << (8 * (8 - end + i));
  }
  return word << (8 * end - bits);
}

// Decodes what is left of a stream, with every access checked, and checks its end.
void finish_stream(const Decoder& d, Stream stream) {
  while (stream.symbols > stream.symbols_begin && stream.bits > stream.bits_begin) {
    LookupEntry entry = d.table->entries()[bits_before(d, stream.bits) >> (64 - kLookupBits)];
    const size_t count =
        std::min<size_t>(entry_count(entry), stream.symbols - stream.symbols_begin);
    size_t read = 0;
    for (size_t i = 0; i < count; ++i, entry <<= 8) {
      const uint8_t symbol = static_cast<uint8_t>(entry >> 56);
      d.plane[--stream.symbols] = symbol;
      read += d.table->length(symbol);
    }
    if (read > stream.bits) break;
    stream.bits -= read;
  }
  if (stream.symbols != stream.symbols_begin || stream.bits != stream.bits_begin) {
    throw CorruptDataError("Huffman stream does not end with its last symbol");
  }
}

template <unsigned n>
void decode_streams(const Decoder& d, Stream (&streams)[kHuffmanStreams]) {
  const auto safe_rounds = [&] {
    size_t rounds = SIZE_MAX;
    for (unsigned k = 0; k < n; ++k) rounds = std::min(rounds, streams[k].safe_rounds());
    return rounds;
  };
  while (const size_t rounds = safe_rounds()) decode_rounds<n>(d, streams, rounds);
  // One stream is done; others may lag, far if their symbols have long codes. One round of each in
  // turn keeps them side by side in the processor's window.
  for (bool more = n > 1; more;) {
    more = false;
    for (unsigned k = 0; k < n; ++k) {
      if (!streams[k].has_round()) continue;
      decode_rounds<1>(d, &streams[k], 1);
      more = true;
    }
  }
  for (unsigned k = 0; k < n; ++k) finish_stream(d, streams[k]);
}

}  // namespace

void huffman_decode(const uint8_t* payload, size_t size, uint8_t* plane, size_t n) {
  const HuffmanLayout layout(n);
  uint8_t lengths[256];
  size_t at = read_code_lengths(payload, size, lengths);
  const uint8_t* size_at = payload + at;
  if (size - at < layout.sizes_bytes()) throw CorruptDataError("Huffman stream sizes are cut off");
  at += layout.sizes_bytes();

  Stream streams[kHuffmanStreams];
  for (unsigned k = 0; k < layout.streams; ++k) {
    size_t stream_size = size - at;
    if (k + 1 < layout.streams) {
      stream_size = 0;
      for (size_t i = 0; i < layout.size_width(); ++i) stream_size |= size_t{*size_at++} << (8 * i);
    }
    if (stream_size > size - at) throw CorruptDataError("Huffman stream exceeds its plane");
    const uint8_t last = stream_size > 0 ? payload[at + stream_size - 1] : uint8_t{0};
    if (last == 0) throw CorruptDataError("Huffman stream has no end mark");
    const size_t mark = static_cast<size_t>(std::countl_zero(last)) + 1;
    streams[k] = {8 * at, 8 * (at + stream_size) - mark, layout.begin(k), layout.end(k)};
    at += stream_size;
  }
  const LookupTable table(lengths);
  const Decoder decoder{payload, size, &table, plane};
  if (layout.streams == 1) {
    decode_streams<1>(decoder, streams);
  } else {
    decode_streams<kHuffmanStreams>(decoder, streams);
  }
}

}  // namespace bf16codecs
