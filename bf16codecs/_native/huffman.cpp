#include "huffman.h"

#include <algorithm>

#include "errors.h"
#include "format.h"
#include "huffman_code.h"
#include "huffman_table.h"

namespace bf16codecs {
namespace {

constexpr unsigned kMaxStreams = 8;
// Below this many symbols, eight streams' sizes cost more than they save in time.
constexpr size_t kManyStreamsFrom = 4096;

unsigned streams_for(size_t n) { return n < kManyStreamsFrom ? 1 : kMaxStreams; }

// The plane's symbols are dealt out to the streams in order: n / streams to each, the rest to the
// last.
size_t stream_begin(size_t n, unsigned streams, unsigned k) { return n / streams * k; }
size_t stream_end(size_t n, unsigned streams, unsigned k) {
  return k + 1 == streams ? n : stream_begin(n, streams, k + 1);
}

// Bytes of a stream's size: two if no stream can be larger than 65,535 bytes.
size_t size_width(size_t n, unsigned streams) {
  const size_t symbols = n - stream_begin(n, streams, streams - 1);
  return (symbols * kMaxCodeLength + 7) / 8 <= UINT16_MAX ? 2 : 4;
}

inline uint64_t load_be64(const uint8_t* p) {
  uint64_t value = 0;
  for (unsigned i = 0; i < 8; ++i) value = value << 8 | p[i];
  return value;
}

inline void store_be64(uint8_t* p, uint64_t value) {
  for (unsigned i = 0; i < 8; ++i) p[i] = static_cast<uint8_t>(value >> (56 - 8 * i));
}

// ---- encoder ----

// A code in the highest bits, its length in the lowest. Added to a bit count, it adds its length
// modulo 64; shifted right by that count, it is in place, and the length has become rubbish in
// the lowest bits, which are cleared once a flush.
using CodeEntry = uint64_t;
constexpr unsigned kSymbolsPerFlush = 4;
static_assert(7 + kSymbolsPerFlush * kMaxCodeLength <= 64 - 6, "codes and rubbish must not meet");

void code_table(const uint8_t lengths[256], CodeEntry table[256]) {
  const CanonicalOrder order(lengths);
  std::fill_n(table, 256, CodeEntry{0});
  uint64_t code = 0;  // aligned to the highest bit
  for (unsigned i = 0; i < order.count; ++i) {
    const unsigned length = lengths[order.symbols[i]];
    table[order.symbols[i]] = code | length;
    code += uint64_t{1} << (64 - length);
  }
}

// Writes one stream to out; returns its end, or nullptr if that were behind out_end.
uint8_t* encode_stream(const uint8_t* symbols, size_t n, const CodeEntry table[256], uint8_t* out,
                       const uint8_t* out_end) {
  constexpr uint64_t kTopByte = uint64_t{0xFF} << 56;
  uint64_t bits = 0;   // pending bits, the first highest; fewer than 8 between flushes
  uint64_t count = 0;  // how many they are, modulo 64
  const uint8_t* const end = symbols + n;
  while (end - symbols >= kSymbolsPerFlush && out_end - out >= 8) {
    for (unsigned i = 0; i < kSymbolsPerFlush; ++i) {
      const CodeEntry entry = table[*symbols++];
      bits |= entry >> (count & 63);
      count += entry;
    }
    store_be64(out, bits);
    out += (count & 63) >> 3;
    bits = (bits << (count & 56)) & kTopByte;
    count &= 7;
  }
  count &= 63;
  for (; symbols != end; ++symbols) {
    const CodeEntry entry = table[*symbols];
    bits |= (entry & ~uint64_t{63}) >> count;
    for (count += entry & 63; count >= 8; count -= 8) {
      if (out == out_end) return nullptr;
      *out++ = static_cast<uint8_t>(bits >> 56);
      bits <<= 8;
    }
  }
  if (count > 0) {
    if (out == out_end) return nullptr;
    *out++ = static_cast<uint8_t>(bits >> 56);
  }
  return out;
}

// ---- decoder ----

constexpr unsigned kLookupsPerRefill = 4;
// A refill gives at least 57 bits: the first byte's bits that were used are missing.
static_assert(kLookupsPerRefill * kLookupBits <= 57);

// What one round of the fast loop takes from a stream and gives to the plane, at most; and how far
// its last store reaches behind the last symbol that it may decode.
constexpr size_t kRoundBits = kLookupsPerRefill * kLookupBits;
constexpr size_t kRoundSymbols = kLookupsPerRefill * kEntrySymbols;
constexpr size_t kStoreOverhang = sizeof(LookupEntry) - kEntrySymbols;

struct Stream {
  size_t bit, bit_end;    // position in the payload
  size_t symbol, symbol_end;  // position in the plane
};

struct Decoder {
  const uint8_t* payload;
  size_t size;
  const LookupTable* table;
  uint8_t* plane;
};

// Rounds that `stream` can go on for without a check: the loads stay in the payload, the stores
// in the stream's own part of the plane.
size_t safe_rounds(const Decoder& d, const Stream& stream) {
  const size_t symbols = stream.symbol_end - stream.symbol;
  // A round that begins at this bit or before can load 8 bytes.
  const size_t last_bit = 8 * d.size - 57;
  if (symbols < kRoundSymbols + kStoreOverhang || d.size < 8 || stream.bit > last_bit) return 0;
  return std::min((symbols - kStoreOverhang) / kRoundSymbols,
                  (last_bit - stream.bit) / kRoundBits + 1);
}

inline void decode_round(const Decoder& d, Stream& stream) {
  const LookupEntry* const entries = d.table->entries();
  uint64_t bits = load_be64(d.payload + (stream.bit >> 3)) << (stream.bit & 7);
  uint64_t sum = 0;  // see LookupEntry
  for (unsigned i = 0; i < kLookupsPerRefill; ++i) {
    LookupEntry entry = entries[bits >> (64 - kLookupBits)];
    store_le(d.plane + stream.symbol + (sum >> 8), entry);
    entry >>= kEntryBitsAt;
    bits <<= entry & 63;
    sum += entry;
  }
  stream.bit += sum & 255;
  stream.symbol += sum >> 8;
}

uint64_t load_be64_within(const uint8_t* p, const uint8_t* end) {
  uint64_t value = 0;
  for (unsigned i = 0; i < 8; ++i) value = value << 8 | (p + i < end ? p[i] : 0);
  return value;
}

// Decodes what is left of a stream, with every access checked, and checks its end.
void finish_stream(const Decoder& d, Stream& stream) {
  const uint8_t* const end = d.payload + stream.bit_end / 8;
  while (stream.symbol < stream.symbol_end && stream.bit < stream.bit_end) {
    const uint64_t bits = load_be64_within(d.payload + stream.bit / 8, end) << (stream.bit & 7);
    LookupEntry entry = d.table->entries()[bits >> (64 - kLookupBits)];
    const size_t count = std::min<size_t>(entry >> kEntryCountAt, stream.symbol_end - stream.symbol);
    for (size_t i = 0; i < count; ++i, entry >>= 8) {
      const uint8_t symbol = static_cast<uint8_t>(entry);
      d.plane[stream.symbol++] = symbol;
      stream.bit += d.table->length(symbol);
    }
  }
  if (stream.symbol < stream.symbol_end || stream.bit > stream.bit_end) {
    throw CorruptDataError("Huffman stream ends before its last symbol");
  }
  const size_t padding = stream.bit_end - stream.bit;
  if (padding >= 8 || (padding > 0 && (end[-1] & ((1u << padding) - 1)) != 0)) {
    throw CorruptDataError("Huffman stream goes on behind its last symbol");
  }
}

void decode_streams(const Decoder& d, Stream* streams, unsigned count) {
  for (unsigned k = 0; k < count; ++k) {
    Stream& stream = streams[k];
    while (size_t rounds = safe_rounds(d, stream)) {
      while (rounds-- > 0) decode_round(d, stream);
    }
    finish_stream(d, stream);
  }
}

}  // namespace

size_t huffman_encode(const uint8_t* plane, size_t n, const uint32_t histogram[256], uint8_t* out,
                      size_t capacity) {
  const unsigned streams = streams_for(n);
  const size_t width = size_width(n, streams);
  uint8_t lengths[256];
  uint8_t code_bytes[kMaxCodeTableBytes];
  limited_code_lengths(histogram, lengths);
  const size_t table_size = write_code_lengths(lengths, code_bytes);

  uint64_t total_bits = 0;
  for (unsigned s = 0; s < 256; ++s) total_bits += uint64_t{histogram[s]} * lengths[s];
  const size_t prefix = 1 + table_size + (streams - 1) * width;
  if (capacity < prefix || capacity - prefix < (total_bits + 7) / 8) return 0;

  out[0] = static_cast<uint8_t>(streams);
  std::copy_n(code_bytes, table_size, out + 1);
  CodeEntry table[256];
  code_table(lengths, table);
  uint8_t* at = out + prefix;
  for (unsigned k = 0; k < streams; ++k) {
    const size_t begin = stream_begin(n, streams, k);
    uint8_t* const end = encode_stream(plane + begin, stream_end(n, streams, k) - begin, table, at,
                                       out + capacity);
    if (end == nullptr) return 0;
    const size_t stream_size = static_cast<size_t>(end - at);
    uint8_t* const size_at = out + 1 + table_size + k * width;
    if (k + 1 < streams && width == 2) store_le(size_at, static_cast<uint16_t>(stream_size));
    if (k + 1 < streams && width == 4) store_le(size_at, static_cast<uint32_t>(stream_size));
    at = end;
  }
  return static_cast<size_t>(at - out);
}

void huffman_decode(const uint8_t* payload, size_t size, uint8_t* plane, size_t n) {
  if (size == 0) throw CorruptDataError("Huffman plane is empty");
  const unsigned streams = payload[0];
  if (streams != streams_for(n)) throw CorruptDataError("Huffman plane: wrong number of streams");
  uint8_t lengths[256];
  size_t at = 1 + read_code_lengths(payload + 1, size - 1, lengths);
  const size_t width = size_width(n, streams);
  const uint8_t* const sizes = payload + at;
  if (size - at < (streams - 1) * width) throw CorruptDataError("Huffman plane: sizes are cut off");
  at += (streams - 1) * width;

  Stream parts[kMaxStreams];
  for (unsigned k = 0; k < streams; ++k) {
    size_t stream_size = size - at;
    if (k + 1 < streams) {
      stream_size = width == 2 ? load_le<uint16_t>(sizes + 2 * k) : load_le<uint32_t>(sizes + 4 * k);
    }
    if (stream_size > size - at) throw CorruptDataError("Huffman stream exceeds its plane");
    parts[k] = {8 * at, 8 * (at + stream_size), stream_begin(n, streams, k),
                stream_end(n, streams, k)};
    at += stream_size;
  }
  const LookupTable table(lengths);
  decode_streams({payload, size, &table, plane}, parts, streams);
}

}  // namespace bf16codecs
