#include "huffman/huffman.h"

#include <algorithm>
#include <bit>

#include "format/errors.h"
#include "format/little_endian.h"
#include "huffman/code.h"
#include "huffman/lookup_table.h"
#include "huffman/streams.h"
#include "kernels/fetch.h"

// Decoding of Huffman planes (docs/format.md, "Huffman plane"). A stream is written from its
// beginning to its end and read from its end to its beginning, so that symbols come out last first.
// That spares the reader every shift but two a look-up: see kernels/huffman.h.
//
// The kernel's rounds do not check anything. So a round is decoded only where it cannot leave the
// stream's part of the plane, nor the payload: it writes at most kRoundRoom bytes and reads at most
// kRoundBits bits and a refill. A damaged stream may read bits of the streams before it, which lie
// in the payload as well; finish_stream() rejects it, as it does not end with its first bit. The
// last symbols of each stream are decoded with checks.

namespace bf16codecs {
namespace {

// What is left of a stream: bits [bits_begin, bits) of the payload and symbols [symbols_begin,
// symbols) of the plane, both read and decoded from the end.
struct Stream {
  size_t bits_begin, bits;
  size_t symbols_begin, symbols;

  // Whether a round may be decoded without checks. A round reads at most kRoundBits, after which
  // kRefillBits are left, so that the refill at its end stays in the payload.
  bool has_round() const {
    return symbols - symbols_begin >= kRoundRoom && bits >= kRefillBits + kRoundBits;
  }
  // How many rounds may be, whatever the codes are.
  size_t safe_rounds() const {
    if (!has_round()) return 0;
    return std::min((symbols - symbols_begin - kRoundRoom) / kRoundSymbols + 1,
                    (bits - kRefillBits) / kRoundBits);
  }
};

struct Decoder {
  const uint8_t* payload;
  const LookupTable* table;
  uint8_t* plane;

  // The kernel's view of a stream: the end of the byte that has the next bit, and how many bits of
  // it were read.
  HuffmanCursor cursor(const Stream& stream) const {
    return {payload + (stream.bits + 7) / 8, static_cast<unsigned>(-stream.bits & 7),
            plane + stream.symbols};
  }
  void move(Stream& stream, const HuffmanCursor& cursor) const {
    stream.bits = static_cast<size_t>(cursor.in - payload) * 8 - cursor.used;
    stream.symbols = static_cast<size_t>(cursor.out - plane);
  }
};

// The rounds that all streams may be decoded for.
template <unsigned n>
size_t safe_rounds(const Stream (&streams)[n]) {
  size_t rounds = SIZE_MAX;
  for (const Stream& stream : streams) rounds = std::min(rounds, stream.safe_rounds());
  return rounds;
}

// Decodes rounds of all streams until one has none left. The others may lag then, far if their
// symbols have long codes: one round of each in turn keeps them side by side in the processor's
// window.
void decode_rounds(const Decoder& d, Stream (&streams)[kHuffmanStreams], FetchAhead& ahead) {
  HuffmanCursor cursors[kHuffmanStreams];
  for (unsigned k = 0; k < kHuffmanStreams; ++k) cursors[k] = d.cursor(streams[k]);
  while (const size_t rounds = safe_rounds(streams)) {
    huffman_rounds_of_8(d.table->entries(), cursors, rounds, ahead);
    for (unsigned k = 0; k < kHuffmanStreams; ++k) d.move(streams[k], cursors[k]);
  }
  for (bool more = true; more;) {
    more = false;
    for (unsigned k = 0; k < kHuffmanStreams; ++k) {
      if (!streams[k].has_round()) continue;
      huffman_rounds_of_1(d.table->entries(), cursors[k], 1);
      d.move(streams[k], cursors[k]);
      more = true;
    }
  }
}

void decode_rounds(const Decoder& d, Stream& stream) {
  HuffmanCursor cursor = d.cursor(stream);
  while (const size_t rounds = stream.safe_rounds()) {
    huffman_rounds_of_1(d.table->entries(), cursor, rounds);
    d.move(stream, cursor);
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

// Finds the streams, whose sizes are at payload + at, and fetches the lines that are read first:
// their ends.
void find_streams(const HuffmanLayout& layout, const uint8_t* payload, size_t size, size_t at,
                  Stream streams[]) {
  constexpr size_t kFirstLines = 6;
  const uint8_t* size_at = payload + at;
  if (size - at < layout.sizes_bytes()) throw CorruptDataError("Huffman stream sizes are cut off");
  // Bits are counted in size_t, which may have 32 bits.
  if (size > SIZE_MAX / 8) throw CorruptDataError("Huffman stream exceeds its plane");
  at += layout.sizes_bytes();
  for (unsigned k = 0; k < layout.streams; ++k) {
    size_t stream_size = size - at;
    if (k + 1 < layout.streams) {
      stream_size = 0;
      for (size_t i = 0; i < layout.size_width(); ++i) stream_size |= size_t{*size_at++} << (8 * i);
    }
    if (stream_size > size - at) throw CorruptDataError("Huffman stream exceeds its plane");
    const uintptr_t end = reinterpret_cast<uintptr_t>(payload) + at + stream_size;
    for (size_t i = 1; i <= kFirstLines; ++i) BF16CODECS_FETCH_L1(end - kCacheLine * i);
    streams[k] = {8 * at, 8 * (at + stream_size), layout.begin(k), layout.end(k)};
    at += stream_size;
  }
}

// Moves a stream's end below its mark, the highest one bit of its last byte.
void skip_mark(const Decoder& d, Stream& stream) {
  const bool is_empty = stream.bits == stream.bits_begin;
  const uint8_t last = is_empty ? uint8_t{0} : d.payload[stream.bits / 8 - 1];
  if (last == 0) throw CorruptDataError("Huffman stream has no end mark");
  stream.bits -= static_cast<size_t>(std::countl_zero(last)) + 1;
}

FetchAhead::Range range_of(const uint8_t* bytes, size_t size) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(bytes);
  return {begin, begin + size};
}

// Decodes the rest of a stream, with every access checked, and checks its end.
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

}  // namespace

void huffman_decode(const uint8_t* payload, size_t size, uint8_t* plane, size_t n,
                    const UsedNext& next) {
  const HuffmanLayout layout(n);
  uint8_t lengths[256];
  const size_t table_size = read_code_lengths(payload, size, lengths);
  Stream streams[kHuffmanStreams];
  find_streams(layout, payload, size, table_size, streams);
  const LookupTable table(lengths);
  const Decoder decoder{payload, &table, plane};
  for (unsigned k = 0; k < layout.streams; ++k) skip_mark(decoder, streams[k]);
  if (layout.streams == 1) {
    decode_rounds(decoder, streams[0]);
  } else {
    FetchAhead ahead{{range_of(next.read, next.read_size), range_of(next.write, next.write_size)}};
    decode_rounds(decoder, streams, ahead);
  }
  for (unsigned k = 0; k < layout.streams; ++k) finish_stream(decoder, streams[k]);
}

}  // namespace bf16codecs
