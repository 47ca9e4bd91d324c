// Encoding of Huffman planes (docs/format.md, "Huffman plane"). Codes are joined before they are
// put into the bit buffer, so that the chain from put to put is short: groups of 16 symbols with
// one put take 0.65 cycles a symbol, single symbols 1.22 (docs/design_codecs.md, "Huffman").

#include <algorithm>
#include <cstring>

#include "format/little_endian.h"
#include "huffman/code.h"
#include "huffman/huffman.h"
#include "huffman/streams.h"
#include "kernels/kernels.h"

namespace bf16codecs {
namespace {

// The codes of one symbol or several, the last symbol's in the highest bits, and their length in
// the low byte. So one number serves as a shift count (its low 6 bits), as a summand of lengths (in
// the low byte), and as the codes that are or-ed to those shifted before. Noise from lengths stays
// below the codes, and BitWriter shifts it out.
using CodeEntry = uint64_t;
constexpr CodeEntry kLengthMask = 255;
constexpr unsigned code_length(CodeEntry entry) {
  return entry & kLengthMask;
}

constexpr CodeEntry join(CodeEntry first, CodeEntry second) {
  const CodeEntry codes = (first & ~kLengthMask) >> code_length(second) | (second & ~kLengthMask);
  return codes | (code_length(first) + code_length(second));
}

// Bits that one put can take: with fewer than 8 left from the put before, they fit in 64, and the
// byte of the length stays below the codes.
constexpr unsigned kMaxPut = 56;
constexpr unsigned kSinglesPerPut = kMaxPut / kMaxCodeLength;

// Between puts, the sink has fewer than 8 bits. A put stores 8 bytes and advances by the whole
// ones.
class BitWriter {
 public:
  BitWriter(uint8_t* out, const uint8_t* end) : sink_{0, 0, out, end} {}

  // Whether this many puts may follow without checks: each advances by at most 7 bytes and
  // stores 8.
  bool has_room(unsigned puts) const {
    return static_cast<size_t>(sink_.end - sink_.out) >= puts * 8;
  }

  // Writes the highest `length` bits of `codes`, 1 to kMaxPut.
  void put(uint64_t codes, unsigned length) {
    sink_.bits |= codes >> (64 - length) << sink_.count;
    sink_.count += length;
    store_le(sink_.out, sink_.bits);
    sink_.out += sink_.count / 8;
    sink_.bits >>= sink_.count & ~7u;
    sink_.count %= 8;
  }
  // Does the same byte by byte, with a check of each; returns false if there is no room.
  bool put_checked(uint64_t codes, unsigned length) {
    sink_.bits |= codes >> (64 - length) << sink_.count;
    for (sink_.count += length; sink_.count >= 8; sink_.count -= 8, sink_.bits >>= 8) {
      if (sink_.out == sink_.end) return false;
      *sink_.out++ = static_cast<uint8_t>(sink_.bits);
    }
    return true;
  }
  // Writes the mark, a one, and zeros above it that fill the byte.
  uint8_t* finish() {
    const unsigned rest = 8 - sink_.count;
    return put_checked(uint64_t{1} << (64 - rest), rest) ? sink_.out : nullptr;
  }
  BitSink& sink() { return sink_; }

 private:
  BitSink sink_;
};

class Encoder {
 public:
  Encoder(const uint8_t lengths[256], const uint32_t histogram[256], size_t n, Scratch& scratch);

  // Writes one stream to out; returns its end, or nullptr if that would be past out_end.
  uint8_t* encode_stream(const uint8_t* symbols, size_t n, uint8_t* out,
                         const uint8_t* out_end) const;

 private:
  template <unsigned kPairs>
  const uint8_t* encode_pairs(const uint8_t* symbols, const uint8_t* end, BitWriter& to) const;
  const uint8_t* encode_singles(const uint8_t* symbols, const uint8_t* end, BitWriter& to) const;

  bool make_packed(const CanonicalOrder& order);
  void make_pairs(const CanonicalOrder& order, Scratch& scratch);

  CodeEntry singles_[256] = {};
  // Packed codes, or pairs, serve for all but the last symbols of a stream, if either was made.
  bool is_packed_ = false;
  uint16_t packed_[kPackEntries] = {};  // see kernels/huffman_pack.h
  const CodeEntry* pairs_ = nullptr;    // by two symbols as a little-endian number
  bool long_groups_ = false;
};

// Pairs in a group, and the bits that a group may have on average, so that more than kMaxPut are
// rare: the spread of the lengths of 16 exponents is 6 bits.
constexpr unsigned kLongGroup = 8;
constexpr unsigned kShortGroup = 6;
constexpr size_t kGroupBits = 46;

Encoder::Encoder(const uint8_t lengths[256], const uint32_t histogram[256], size_t n,
                 Scratch& scratch) {
  const CanonicalOrder order(lengths);
  uint64_t code = 0;  // aligned to the highest bit
  size_t bits = 0;
  for (unsigned i = 0; i < order.count; ++i) {
    const uint8_t symbol = order.symbols[i];
    singles_[symbol] = code | lengths[symbol];
    code += uint64_t{1} << (64 - lengths[symbol]);
    bits += size_t{histogram[symbol]} * lengths[symbol];
  }
  is_packed_ = kernels().huffman_pack != nullptr && make_packed(order);
  // The table of pairs, at some 7 cycles an entry, saves 0.6 cycles a symbol.
  const bool pairs_pay = size_t{order.count} * order.count * 16 <= n;
  if (is_packed_ || !pairs_pay || bits * 2 * kShortGroup > n * kGroupBits) return;
  make_pairs(order, scratch);
  long_groups_ = bits * 2 * kLongGroup <= n * kGroupBits;
}

// Makes packed codes; returns false if two symbols would have the same entry.
bool Encoder::make_packed(const CanonicalOrder& order) {
  for (unsigned i = 0; i < order.count; ++i) {
    const CodeEntry entry = singles_[order.symbols[i]];
    const unsigned length = code_length(entry);
    uint16_t& packed = packed_[order.symbols[i] % kPackEntries];
    if (packed != 0) return false;
    packed = static_cast<uint16_t>(entry >> (64 - length) | length << kPackLengthAt);
  }
  return true;
}

// The table is sparse: of half a MiB, the few symbols of an exponent plane touch some 10 KiB.
void Encoder::make_pairs(const CanonicalOrder& order, Scratch& scratch) {
  CodeEntry* const table = reinterpret_cast<CodeEntry*>(scratch.at_least(sizeof(CodeEntry) << 16));
  for (unsigned i = 0; i < order.count; ++i) {
    CodeEntry* const row = table + 256 * size_t{order.symbols[i]};
    for (unsigned k = 0; k < order.count; ++k) {
      row[order.symbols[k]] = join(singles_[order.symbols[k]], singles_[order.symbols[i]]);
    }
  }
  pairs_ = table;
}

// Encodes groups of pairs, with one put each where they have at most kMaxPut bits, otherwise with
// one put a pair, as long as there are symbols and room. Returns the symbols that are left.
template <unsigned kPairs>
const uint8_t* Encoder::encode_pairs(const uint8_t* symbols, const uint8_t* end,
                                     BitWriter& to) const {
  BitWriter writer = to;  // in registers
  for (; static_cast<size_t>(end - symbols) >= 2 * kPairs && writer.has_room(kPairs);
       symbols += 2 * kPairs) {
    const auto entry = [&](unsigned pair) { return pairs_[load_le<uint16_t>(symbols + 2 * pair)]; };
    CodeEntry codes = entry(0);
    uint64_t length = codes;
    for (unsigned i = 1; i < kPairs; ++i) {
      codes = codes >> (entry(i) & 63) | entry(i);
      length += entry(i);
    }
    if (code_length(length) <= kMaxPut) {
      writer.put(codes, code_length(length));
    } else {
      for (unsigned i = 0; i < kPairs; ++i) writer.put(entry(i), code_length(entry(i)));
    }
  }
  to = writer;
  return symbols;
}

// Encodes five symbols a put, which have at most 55 bits. Returns the symbols that are left.
const uint8_t* Encoder::encode_singles(const uint8_t* symbols, const uint8_t* end,
                                       BitWriter& to) const {
  BitWriter writer = to;
  for (; static_cast<size_t>(end - symbols) >= kSinglesPerPut && writer.has_room(1);
       symbols += kSinglesPerPut) {
    CodeEntry codes = singles_[symbols[0]];
    uint64_t length = codes;
    for (unsigned i = 1; i < kSinglesPerPut; ++i) {
      const CodeEntry entry = singles_[symbols[i]];
      codes = codes >> (entry & 63) | entry;
      length += entry;
    }
    writer.put(codes, code_length(length));
  }
  to = writer;
  return symbols;
}

uint8_t* Encoder::encode_stream(const uint8_t* symbols, size_t n, uint8_t* out,
                                const uint8_t* out_end) const {
  BitWriter writer(out, out_end);
  const uint8_t* const end = symbols + n;
  if (is_packed_) {
    symbols += kernels().huffman_pack(writer.sink(), packed_, symbols, n);
  } else if (pairs_ == nullptr) {
    symbols = encode_singles(symbols, end, writer);
  } else if (long_groups_) {
    symbols = encode_pairs<kLongGroup>(symbols, end, writer);
  } else {
    symbols = encode_pairs<kShortGroup>(symbols, end, writer);
  }
  for (; symbols != end; ++symbols) {
    const CodeEntry entry = singles_[*symbols];
    if (!writer.put_checked(entry, code_length(entry))) return nullptr;
  }
  return writer.finish();
}

void store_size(uint8_t* at, size_t size, size_t width) {
  for (size_t i = 0; i < width; ++i) at[i] = static_cast<uint8_t>(size >> (8 * i));
}

}  // namespace

size_t huffman_encode(const uint8_t* plane, size_t n, const uint32_t histogram[256], uint8_t* out,
                      size_t capacity, Scratch& code_pairs) {
  const HuffmanLayout layout(n);
  uint8_t lengths[256];
  uint8_t code_table[kMaxCodeTableBytes];
  limited_code_lengths(histogram, lengths);
  const size_t table_size = write_code_lengths(lengths, code_table);

  uint64_t bits = layout.streams;  // the marks: a lower bound, as streams are filled up to bytes
  for (unsigned s = 0; s < 256; ++s) bits += uint64_t{histogram[s]} * lengths[s];
  const size_t prefix = table_size + layout.sizes_bytes();
  if (capacity < prefix || capacity - prefix < (bits + 7) / 8) return 0;

  std::memcpy(out, code_table, table_size);
  const Encoder encoder(lengths, histogram, n, code_pairs);
  uint8_t* at = out + prefix;
  for (unsigned k = 0; k < layout.streams; ++k) {
    const size_t begin = layout.begin(k);
    uint8_t* const end =
        encoder.encode_stream(plane + begin, layout.end(k) - begin, at, out + capacity);
    if (end == nullptr) return 0;
    if (k + 1 < layout.streams) {
      const size_t width = layout.size_width();
      store_size(out + table_size + k * width, static_cast<size_t>(end - at), width);
    }
    at = end;
  }
  return static_cast<size_t>(at - out);
}

}  // namespace bf16codecs
