#pragma once

// The Huffman mode (docs/format.md, "Huffman plane"). Each of eight streams is decoded by one
// thread, while the other 24 wait: a warp that decodes one block uses a quarter of its lanes.

#include "cuda/warp.h"
#include "huffman/streams.h"

namespace bf16codecs::cuda {

inline constexpr unsigned kLookups = 1u << kMaxCodeLength;

struct HuffmanMemory {
  // For each window of bits, up to three whole codes at its start: bits 0-3 are their total length,
  // bits 4-5 their number, bits 8-31 their symbols, the first one highest.
  Shared<4 * kLookups> table;
  // The symbols that have codes, in the order of the codes; and for each length the first code, the
  // number of codes, and the number of shorter codes, as u16.
  Shared<256> order;
  Shared<6 * (kMaxCodeLength + 1)> lengths;
  Shared<256> length_of;
};

// A code at the start of a window.
struct HuffmanCode {
  uint32_t symbol, length;
};

BF16CODECS_DEVICE HuffmanCode first_code(HuffmanMemory& memory, uint32_t window) {
  for (unsigned length = 1; length < kMaxCodeLength; ++length) {
    const uint32_t code = window >> (kMaxCodeLength - length);
    const uint32_t rank = code - memory.lengths.load<uint16_t>(6 * length);
    if (rank >= memory.lengths.load<uint16_t>(6 * length + 2)) continue;
    return {memory.order.load<uint8_t>(memory.lengths.load<uint16_t>(6 * length + 4) + rank),
            length};
  }
  constexpr unsigned kLast = 6 * kMaxCodeLength;
  const uint32_t rank = window - memory.lengths.load<uint16_t>(kLast);
  return {memory.order.load<uint8_t>((memory.lengths.load<uint16_t>(kLast + 4) + rank) & 255),
          kMaxCodeLength};
}

// Reads the code lengths at the start of a payload; returns their size in bytes, or 0 unless they
// form a complete code.
BF16CODECS_DEVICE uint32_t read_code_lengths(const Warp& warp, HuffmanMemory& memory,
                                             const uint8_t* payload, uint32_t size) {
  uint32_t nibbles = 0;
  bool is_cut_off = false;
  const auto nibble = [&] {
    is_cut_off |= nibbles / 2 >= size;
    if (is_cut_off) return 0u;
    const unsigned byte = warp.same(payload[nibbles / 2]);
    return nibbles++ % 2 == 0 ? byte >> 4 : byte & 15;
  };
  warp.each([&](unsigned t) {
    for (unsigned s = t; s < 256; s += kThreads) memory.length_of.store(s, uint8_t{0});
  });
  warp.sync();
  unsigned symbol = 0, used = 0;  // `used` is a share of the code space
  while (used < kLookups) {
    const unsigned length = nibble();
    unsigned absent = length == 0 ? 1 : 0;
    if (length == 15) {
      absent = nibble() << 4;
      absent = (absent | nibble()) + 1;
    } else if (length > kMaxCodeLength) {
      return 0;
    }
    if (is_cut_off || symbol + (absent != 0 ? absent : 1) > 256) return 0;
    if (absent == 0) {
      warp.once([&] { memory.length_of.store(symbol, static_cast<uint8_t>(length)); });
      used += kLookups >> length;
    }
    symbol += absent != 0 ? absent : 1;
  }
  if (used > kLookups || (nibbles % 2 != 0 && nibble() != 0)) return 0;
  warp.sync();
  return nibbles / 2;
}

// Assigns codes to symbols, by length, then by symbol.
BF16CODECS_DEVICE void assign_codes(const Warp& warp, HuffmanMemory& memory) {
  uint32_t first = 0, before = 0;
  for (unsigned length = 1; length <= kMaxCodeLength; ++length) {
    const uint32_t begin = before;
    for (unsigned s = 0; s < 256; s += kThreads) {
      const uint32_t those =
          warp.ballot([&](unsigned t) { return memory.length_of.load<uint8_t>(s + t) == length; });
      warp.each([&](unsigned t) {
        if ((those >> t & 1) == 0) return;
        memory.order.store(before + count_bits(those & threads_before(t)),
                           static_cast<uint8_t>(s + t));
      });
      before += count_bits(those);
    }
    warp.once([&] {
      memory.lengths.store(6 * length, static_cast<uint16_t>(first));
      memory.lengths.store(6 * length + 2, static_cast<uint16_t>(before - begin));
      memory.lengths.store(6 * length + 4, static_cast<uint16_t>(begin));
    });
    first = (first + before - begin) << 1;
  }
  warp.sync();
}

// Fills the table with the first code of each window. The windows of a code are consecutive, in the
// order of the codes.
BF16CODECS_DEVICE void fill_first_codes(const Warp& warp, HuffmanMemory& memory) {
  uint32_t window = 0, index = 0;
  for (uint32_t length = 1; length <= kMaxCodeLength; ++length) {
    const uint32_t windows = kLookups >> length;
    const uint32_t codes = warp.same(memory.lengths.load<uint16_t>(6 * length + 2));
    for (uint32_t i = 0; i < codes; ++i, window += windows, ++index) {
      const uint32_t symbol = warp.same(memory.order.load<uint8_t>(index));
      warp.each([&](unsigned t) {
        BF16CODECS_ROLLED
        for (uint32_t w = t; w < windows; w += kThreads) {
          memory.table.store(4 * (window + w), symbol << 8 | 1u << 4 | length);
        }
      });
    }
  }
  warp.sync();
}

// Adds the second and third codes of each window. The length of an entry's first code follows from
// its first symbol, whether or not other codes have been added.
BF16CODECS_DEVICE void fill_table(const Warp& warp, HuffmanMemory& memory) {
  fill_first_codes(warp, memory);
  for (uint32_t first = 0; first < kLookups; first += kThreads) {
    PerThread<uint32_t> entry;
    warp.each([&](unsigned t) {
      const uint32_t window = first + t;
      uint32_t symbols = 0, count = 0, used = 0;
      BF16CODECS_UNROLLED
      for (unsigned i = 0; i < 3; ++i) {
        const auto next = memory.table.load<uint32_t>(4 * (window << used & (kLookups - 1)));
        const uint32_t symbol = next >> 8 * (next >> 4 & 3) & 255;
        const uint32_t length = memory.length_of.load<uint8_t>(symbol);
        if (used + length > kMaxCodeLength) break;
        symbols = symbols << 8 | symbol;
        used += length;
        ++count;
      }
      entry[t] = symbols << 8 | count << 4 | used;
    });
    warp.sync();
    warp.each([&](unsigned t) { memory.table.store(4 * (first + t), entry[t]); });
    warp.sync();
  }
}

// A stream, which a thread decodes from its end; the symbols are written downwards as well.
class HuffmanStream {
 public:
  // Bits [begin, bits) of a payload are left, for `left` symbols that end at `out`.
  BF16CODECS_DEVICE HuffmanStream(const uint8_t* payload, uint32_t begin, uint32_t bits,
                                  uint8_t* out, uint32_t left)
      : payload_(payload), begin_(begin), bits_(bits), out_(out), left_(left) {}

  // Removes the end mark; returns false if it is missing.
  BF16CODECS_DEVICE bool skip_mark() {
    const uint32_t last = bits_ == begin_ ? 0 : payload_[bits_ / 8 - 1];
    if (last == 0) return false;
    bits_ -= 8 - last_bit(last);
    return true;
  }

  // Decodes all symbols; returns whether they used exactly all bits.
  BF16CODECS_DEVICE bool decode(HuffmanMemory& memory) {
    // Whole words are written, to multiples of 4 bytes.
    const auto above = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(out_) % 4);
    if (!decode_singly(memory, least(above, left_))) return false;
    while (left_ >= kRound && bits_ >= begin_ + kRefill && bits_ >= 64) round(memory);
    while (n_held_ != 0) *--out_ = static_cast<uint8_t>(held_ >> 8 * --n_held_);
    return decode_singly(memory, left_) && bits_ == begin_;
  }

 private:
  static constexpr unsigned kRoundLookups = 5;
  static constexpr unsigned kRound = 3 * kRoundLookups;                // symbols, at most
  static constexpr unsigned kRefill = kMaxCodeLength * kRoundLookups;  // bits, at most

  BF16CODECS_DEVICE void round(HuffmanMemory& memory) {
    // The next bit becomes the highest. At most 7 higher bits of the load are used already.
    const uint32_t end = (bits_ + 7) / 8;
    uint64_t window = load_any<uint64_t>(payload_ + end - 8) << (8 * end - bits_);
    BF16CODECS_UNROLLED
    for (unsigned i = 0; i < kRoundLookups; ++i) {
      const auto at = static_cast<unsigned>(window >> (64 - kMaxCodeLength));
      const auto entry = memory.table.load<uint32_t>(4 * at);
      window <<= entry & 15;
      bits_ -= entry & 15;
      put(entry >> 8, entry >> 4 & 3);
    }
  }

  // The next bits; zeros before the start of the payload.
  BF16CODECS_DEVICE uint32_t window() const {
    uint32_t window = 0;
    for (unsigned i = 0; i < kMaxCodeLength; ++i) {
      const uint32_t at = bits_ - 1 - i;
      const uint32_t bit = i < bits_ ? payload_[at / 8] >> at % 8 & 1 : 0;
      window = window << 1 | bit;
    }
    return window;
  }

  BF16CODECS_DEVICE bool decode_singly(HuffmanMemory& memory, uint32_t n) {
    BF16CODECS_ROLLED
    for (; n != 0; --n) {
      const HuffmanCode code = first_code(memory, window());
      if (code.length > bits_ - begin_) return false;
      bits_ -= code.length;
      *--out_ = static_cast<uint8_t>(code.symbol);
      --left_;
    }
    return true;
  }

  // Prepends symbols in reverse order, and writes whole words.
  BF16CODECS_DEVICE void put(uint32_t symbols, unsigned count) {
    held_ = held_ << 8 * count | symbols;
    n_held_ += count;
    left_ -= count;
    if (n_held_ < 4) return;
    n_held_ -= 4;
    out_ -= 4;
    store_aligned(out_, static_cast<uint32_t>(held_ >> 8 * n_held_));
  }

  const uint8_t* const payload_;
  const uint32_t begin_;
  uint32_t bits_;
  uint8_t* out_;
  uint32_t left_;
  uint64_t held_ = 0;  // symbols not yet written; the highest byte has the highest address
  unsigned n_held_ = 0;
};

// A thread's stream: its bytes, and the end of its symbols as `out`.
struct StreamBounds {
  const uint8_t* payload;
  uint32_t begin, end;  // bytes
  uint8_t* out;
  uint32_t symbols;
};

// Reads the table of a payload of n symbols, and gives its streams to threads from `first` on;
// returns false if the payload is invalid.
BF16CODECS_DEVICE bool find_streams(const Warp& warp, HuffmanMemory& memory, const uint8_t* payload,
                                    uint32_t size, uint8_t* plane, uint32_t n, unsigned first,
                                    PerThread<StreamBounds>& bounds) {
  const HuffmanLayout layout(n);
  const uint32_t table_size = read_code_lengths(warp, memory, payload, size);
  if (table_size == 0) return false;
  const auto sizes = static_cast<uint32_t>(layout.sizes_bytes());
  if (size - table_size < sizes) return false;
  assign_codes(warp, memory);
  fill_table(warp, memory);
  PerThread<uint32_t> stream_size;
  const unsigned width = static_cast<unsigned>(layout.size_width());
  warp.each([&](unsigned t) {
    const unsigned stream = t - first;
    const uint8_t* const p = payload + table_size + width * stream;
    stream_size[t] = t < first || stream + 1 >= layout.streams ? 0
                     : width == 2                              ? load_any<uint16_t>(p)
                                                               : load_any<uint32_t>(p);
  });
  const uint32_t room = size - table_size - sizes;
  const uint32_t bad = warp.ballot([&](unsigned t) { return stream_size[t] > room; });
  if (bad != 0) return false;
  uint32_t total;
  const PerThread<uint32_t> before = warp.sums_before(stream_size, total);
  if (total > room) return false;
  warp.each([&](unsigned t) {
    const unsigned stream = t - first;
    const uint32_t begin = table_size + sizes + before[t];
    const uint32_t end = stream + 1 == layout.streams ? size : begin + stream_size[t];
    const auto last = static_cast<uint32_t>(layout.end(stream));
    const StreamBounds found = {payload, begin, end, plane + last,
                                last - static_cast<uint32_t>(layout.begin(stream))};
    // Selected without a branch: after one, the compiler no longer proves that threads go in
    // lockstep.
    bounds[t] = stream < layout.streams ? found : bounds[t];
  });
  return true;
}

// Decodes a stream; returns false if it is invalid.
BF16CODECS_DEVICE bool decode_stream(HuffmanMemory& memory, const StreamBounds& bounds) {
  HuffmanStream stream(bounds.payload, 8 * bounds.begin, 8 * bounds.end, bounds.out,
                       bounds.symbols);
  return stream.skip_mark() && stream.decode(memory);
}

// Decodes a payload to a plane of n symbols; returns false if it is invalid.
BF16CODECS_DEVICE bool decode_huffman(const Warp& warp, HuffmanMemory& memory,
                                      const uint8_t* payload, uint32_t size, uint8_t* plane,
                                      uint32_t n) {
  PerThread<StreamBounds> bounds;
  warp.each([&](unsigned t) { bounds[t] = {}; });
  if (!find_streams(warp, memory, payload, size, plane, n, 0, bounds)) return false;
  const unsigned streams = HuffmanLayout(n).streams;
  const uint32_t bad =
      warp.ballot([&](unsigned t) { return t < streams && !decode_stream(memory, bounds[t]); });
  warp.sync();
  return bad == 0;
}

}  // namespace bf16codecs::cuda
