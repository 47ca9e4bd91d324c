#include "huffman.h"

#include <algorithm>
#include <bit>

#include "errors.h"
#include "format.h"
#include "huffman_code.h"
#include "huffman_table.h"

// A stream's bits are written from the beginning to the end and read from the end to the
// beginning, so symbols come out last first. That spares the reader every shift but two a
// look-up: see huffman_table.h.

namespace bf16codecs {
namespace {

constexpr unsigned kStreams = 8;
// Below this many symbols, eight streams' sizes cost more than they save in time.
constexpr size_t kManyStreamsFrom = 4096;

// How a plane of n symbols is dealt out: n / streams symbols to each stream in turn, the rest to
// the last.
struct Layout {
  explicit Layout(size_t n) : symbols(n), streams(n < kManyStreamsFrom ? 1 : kStreams) {}

  size_t begin(unsigned stream) const { return symbols / streams * stream; }
  size_t end(unsigned stream) const {
    return stream + 1 == streams ? symbols : begin(stream + 1);
  }
  // Bytes of a stored size: two if no stream can be larger than 65,535 bytes.
  size_t size_width() const {
    const size_t longest = symbols - begin(streams - 1);
    return longest * kMaxCodeLength / 8 < UINT16_MAX ? 2 : 4;
  }
  // The last stream's size is what is left of the payload.
  size_t sizes_bytes() const { return (streams - 1) * size_width(); }

  size_t symbols;
  unsigned streams;
};

// ---- encoder ----

struct Code {
  uint32_t bits, length;
};

constexpr unsigned kSymbolsPerFlush = 5;
static_assert(7 + kSymbolsPerFlush * kMaxCodeLength <= 64);

void assign_codes(const uint8_t lengths[256], Code codes[256]) {
  const CanonicalOrder order(lengths);
  std::fill_n(codes, 256, Code{0, 0});
  uint32_t code = 0;
  unsigned last_length = 0;
  for (unsigned i = 0; i < order.count; ++i) {
    const unsigned length = lengths[order.symbols[i]];
    code <<= length - last_length;
    last_length = length;
    codes[order.symbols[i]] = {code++, length};
  }
}

// Writes one stream to out; returns its end, or nullptr if that were behind out_end.
uint8_t* encode_stream(const uint8_t* symbols, size_t n, const Code codes[256], uint8_t* out,
                       const uint8_t* out_end) {
  uint64_t bits = 0;  // not yet written, the first lowest
  unsigned count = 0;  // of them: fewer than 8 between flushes
  const uint8_t* const end = symbols + n;
  while (end - symbols >= kSymbolsPerFlush && out_end - out >= 8) {
    // Put together apart from `bits`: what one flush has to wait for of the last is then short.
    uint64_t group = codes[symbols[0]].bits;
    unsigned group_count = codes[symbols[0]].length;
    for (unsigned i = 1; i < kSymbolsPerFlush; ++i) {
      const Code code = codes[symbols[i]];
      group |= uint64_t{code.bits} << group_count;
      group_count += code.length;
    }
    symbols += kSymbolsPerFlush;
    bits |= group << count;
    count += group_count;
    store_le(out, bits);
    out += count / 8;
    bits >>= count & ~7u;
    count %= 8;
  }
  const auto put = [&](Code code) {
    bits |= uint64_t{code.bits} << count;
    count += code.length;
    for (; count >= 8; count -= 8, bits >>= 8) {
      if (out == out_end) return false;
      *out++ = static_cast<uint8_t>(bits);
    }
    return true;
  };
  for (; symbols != end; ++symbols) {
    if (!put(codes[*symbols])) return nullptr;
  }
  // A one marks the end, zeros fill the byte.
  return put({1, 8 - count}) ? out : nullptr;
}

// ---- decoder ----

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
void decode_streams(const Decoder& d, Stream (&streams)[kStreams]) {
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

size_t huffman_encode(const uint8_t* plane, size_t n, const uint32_t histogram[256], uint8_t* out,
                      size_t capacity) {
  const Layout layout(n);
  uint8_t lengths[256];
  uint8_t code_table[kMaxCodeTableBytes];
  limited_code_lengths(histogram, lengths);
  const size_t table_size = write_code_lengths(lengths, code_table);

  uint64_t total_bits = layout.streams;
  for (unsigned s = 0; s < 256; ++s) total_bits += uint64_t{histogram[s]} * lengths[s];
  const size_t prefix = table_size + layout.sizes_bytes();
  if (capacity < prefix || capacity - prefix < (total_bits + 7) / 8) return 0;

  std::copy_n(code_table, table_size, out);
  Code codes[256];
  assign_codes(lengths, codes);
  uint8_t* at = out + prefix;
  uint8_t* size_at = out + table_size;
  for (unsigned k = 0; k < layout.streams; ++k) {
    const size_t begin = layout.begin(k);
    uint8_t* const end = encode_stream(plane + begin, layout.end(k) - begin, codes, at,
                                       out + capacity);
    if (end == nullptr) return 0;
    if (k + 1 < layout.streams) {
      const size_t size = static_cast<size_t>(end - at);
      for (size_t i = 0; i < layout.size_width(); ++i) {
        *size_at++ = static_cast<uint8_t>(size >> (8 * i));
      }
    }
    at = end;
  }
  return static_cast<size_t>(at - out);
}

void huffman_decode(const uint8_t* payload, size_t size, uint8_t* plane, size_t n) {
  const Layout layout(n);
  uint8_t lengths[256];
  size_t at = read_code_lengths(payload, size, lengths);
  const uint8_t* size_at = payload + at;
  if (size - at < layout.sizes_bytes()) throw CorruptDataError("Huffman stream sizes are cut off");
  at += layout.sizes_bytes();

  Stream streams[kStreams];
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
    decode_streams<kStreams>(decoder, streams);
  }
}

}  // namespace bf16codecs
