#pragma once

// The Huffman mode (docs/format.md, "Huffman plane"). Each of eight streams is decoded by one
// thread, while the other 24 wait: a warp that decodes one block uses a quarter of its lanes.

#include "cuda/warp.h"
#include "huffman/streams.h"

namespace bf16codecs::cuda {

inline constexpr unsigned kWindows = 1u << kMaxCodeLength;

// The codes of blocks: for each window of bits, the code at its start. Byte 0 is its length, and
// byte 1 its symbol.
inline constexpr unsigned kHuffmanTable = 2 * kWindows;  // bytes
template <unsigned kTables>
using HuffmanTables = Shared<kHuffmanTable * kTables>;

// The lengths of the code that is read, and the symbols that have codes, in the order of the codes.
struct HuffmanLengths {
  Shared<256> of, order;
};

// Words of the payload that each thread has before it needs them. The words of a thread are
// consecutive, and begin in another bank than those of the next seven threads.
inline constexpr unsigned kHeldWords = 32;
inline constexpr unsigned kQuadWords = kQuadBytes / 4;
inline constexpr unsigned kHeldBytes = 4 * kHeldWords + kQuadBytes;
using HuffmanWords = Shared<kHeldBytes * kThreads>;

struct HuffmanMemory {
  HuffmanTables<1> tables;
  HuffmanLengths lengths;
  HuffmanWords words;
};

// Reads the code lengths at the start of a payload; returns their size in bytes, or 0 unless they
// form a complete code.
BF16CODECS_DEVICE uint32_t read_code_lengths(const Warp& warp, HuffmanLengths& lengths,
                                             const uint8_t* payload, uint32_t size) {
  uint32_t nibbles = 0;
  bool is_cut_off = false;
  const auto nibble = [&] {
    is_cut_off |= nibbles / 2 >= size;
    if (is_cut_off) return 0u;
    const unsigned byte = warp.same(payload[nibbles / 2]);
    return nibbles++ % 2 == 0 ? byte >> 4 : byte & 15;
  };
  warp.sync();  // after the last block's, which may have been damaged
  warp.each([&](unsigned t) {
    for (unsigned s = t; s < 256; s += kThreads) lengths.of.store(s, uint8_t{0});
  });
  warp.sync();
  unsigned symbol = 0, used = 0;  // `used` is a share of the code space
  while (used < kWindows) {
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
      warp.once([&] { lengths.of.store(symbol, static_cast<uint8_t>(length)); });
      used += kWindows >> length;
    }
    symbol += absent != 0 ? absent : 1;
  }
  if (used > kWindows || (nibbles % 2 != 0 && nibble() != 0)) return 0;
  warp.sync();
  return nibbles / 2;
}

// Fills the table at an offset. The windows of a code are consecutive, in the order of the codes:
// by length, then by symbol.
template <unsigned kTables>
BF16CODECS_DEVICE void fill_table(const Warp& warp, HuffmanLengths& lengths,
                                  HuffmanTables<kTables>& tables, unsigned at) {
  uint32_t window = 0;
  for (uint32_t length = 1; length <= kMaxCodeLength; ++length) {
    unsigned codes = 0;
    for (unsigned s = 0; s < 256; s += kThreads) {
      const uint32_t those =
          warp.ballot([&](unsigned t) { return lengths.of.load<uint8_t>(s + t) == length; });
      warp.each([&](unsigned t) {
        if ((those >> t & 1) == 0) return;
        lengths.order.store(codes + count_bits(those & threads_before(t)),
                            static_cast<uint8_t>(s + t));
      });
      codes += count_bits(those);
    }
    warp.sync();
    const uint32_t log2 = kMaxCodeLength - length;  // of the windows of a code
    BF16CODECS_ROLLED
    for (uint32_t first = 0; first < codes << log2; first += kThreads) {
      warp.each([&](unsigned t) {
        const uint32_t w = first + t;
        if (w >= codes << log2) return;
        const unsigned symbol = lengths.order.load<uint8_t>(w >> log2);
        tables.store(at + 2 * (window + w), static_cast<uint16_t>(symbol << 8 | length));
      });
    }
    window += codes << log2;
    warp.sync();
  }
}

// A thread's stream, decoded from its end; the symbols are written downwards as well.
template <unsigned kTables>
class HuffmanStream {
 public:
  static constexpr unsigned kRound = 32;  // symbols, whose bytes are a sector of memory

  // Bits [begin, bits) of a payload are `left` symbols that end at `out`.
  BF16CODECS_DEVICE HuffmanStream(const uint8_t* payload, uint32_t begin, uint32_t bits,
                                  uint8_t* out, uint32_t left)
      : payload_(payload), begin_(begin), bits_(bits), out_(out), left_(left) {}
  // No stream.
  HuffmanStream() = default;

  // Gives thread t the table at an offset, and its words.
  BF16CODECS_DEVICE void give(const HuffmanTables<kTables>& tables, unsigned table_at,
                              HuffmanWords& words, unsigned t) {
    tables_ = &tables;
    table_at_ = table_at;
    words_ = &words;
    words_at_ = kHeldBytes * t;
  }

  // Finds the end mark, and decodes symbols until those left end at a whole quad.
  BF16CODECS_DEVICE void start() {
    const uint32_t last = bits_ == begin_ ? 0 : payload_[bits_ / 8 - 1];
    is_sound_ = last != 0;
    if (!is_sound_) return;
    bits_ -= 8 - last_bit(last);
    const auto above = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(out_) % kQuadBytes);
    decode_singly(least(above, left_));
    if (has_round()) load_words();
  }

  // Whether enough is left for a round.
  BF16CODECS_DEVICE bool has_round() const {
    return is_sound_ && left_ >= kRound && bits_ - begin_ >= kMostBits;
  }

  // Copies words, so that a round has its own, which were copied before the one before.
  BF16CODECS_DEVICE void hold() {
    BF16CODECS_ROLLED
    while (unread() <= kHeldWords - kQuadWords) push_quad();
  }

  // Decodes some symbols, and writes whole quads; nothing happens unless it `has_round`.
  BF16CODECS_DEVICE void round() {
    Quad low, high;
    BF16CODECS_UNROLLED
    for (unsigned i = 0; i < kQuadWords; ++i) high.word[kQuadWords - 1 - i] = next_four();
    BF16CODECS_UNROLLED
    for (unsigned i = 0; i < kQuadWords; ++i) low.word[kQuadWords - 1 - i] = next_four();
    // A branch around all of it would part the threads.
    const bool is_round = has_round();
    const unsigned decoded = is_round ? kRound : 0;
    out_ -= decoded;
    left_ -= decoded;
    bits_ = is_round ? 32 * (word_ + 3) - (used_ & 63) - skipped_ : bits_;
    store_if(is_round, out_, 0, low);
    store_if(is_round, out_, kQuadBytes, high);
  }

  // Decodes the other symbols; returns whether all used exactly all bits.
  BF16CODECS_DEVICE bool finish() {
    if (is_sound_) decode_singly(left_);
    return is_sound_ && bits_ == begin_;
  }

 private:
  static constexpr unsigned kMostBits = kRound * kMaxCodeLength;
  static constexpr unsigned kMostWords = (31 + kMostBits) / 32;
  // The words of a round, and those of the one before, which are copied meanwhile.
  static_assert(2 * kMostWords + kQuadWords <= kHeldWords);

  // Loads the last words of the stream. Bits and words count from the quad that contains the first
  // byte of the payload.
  BF16CODECS_DEVICE void load_words() {
    const unsigned skipped = reinterpret_cast<uintptr_t>(payload_) % kQuadBytes;
    quads_ = payload_ - skipped;
    skipped_ = 8 * skipped;
    const uint32_t end = bits_ + skipped_;
    size_ = (end + 7) / 8;
    word_ = (end - 1) / 32;
    used_ = 32 * (word_ + 1) - end;
    pushed_ = word_ / kQuadWords + 1;
    BF16CODECS_ROLLED
    for (unsigned i = 0; i < kHeldWords / kQuadWords; ++i) push_quad();
    wait_for_copies<0>();
    high_ = held_word(word_);
    low_ = held_word(--word_);
    next_ = held_word(--word_);
  }

  // The number of words that are held in memory alone.
  BF16CODECS_DEVICE uint32_t unread() const { return word_ - kQuadWords * pushed_; }

  // There are no quads before the payload.
  BF16CODECS_DEVICE void push_quad() {
    --pushed_;
    if (static_cast<int32_t>(pushed_) < 0) return;
    copy_quad_until(*words_, held_at(kQuadWords * pushed_), quads_, kQuadBytes * pushed_, size_);
  }

  BF16CODECS_DEVICE unsigned held_at(uint32_t word) const {
    return words_at_ + 4 * (word % kHeldWords);
  }
  BF16CODECS_DEVICE uint32_t held_word(uint32_t word) const {
    return words_->template load<uint32_t>(held_at(word));
  }

  // Decodes two symbols: their entries in the table.
  BF16CODECS_DEVICE void next_two(uint32_t& a, uint32_t& b) {
    static_assert(31 + 2 * kMaxCodeLength < 64);
    if ((used_ & 32) != 0) {
      high_ = low_;
      low_ = next_;
      next_ = held_word(--word_);
    }
    const uint32_t bits = shift_left(low_, high_, used_);
    a = entry_of(bits);
    b = entry_of(shift_left(0, bits, a));
    used_ = (used_ & 31) + a + b;  // above bit 5 are parts of symbols
  }

  BF16CODECS_DEVICE uint32_t entry_of(uint32_t bits) const {
    const uint32_t window = bits >> (32 - kMaxCodeLength);
    return tables_->template load<uint16_t>(2 * window | table_at_);
  }

  // Decodes four symbols, the first one highest.
  BF16CODECS_DEVICE uint32_t next_four() {
    uint32_t a, b, c, d;
    next_two(a, b);
    next_two(c, d);
    return pick_bytes(pick_bytes(d, c, 0x51), pick_bytes(b, a, 0x51), 0x5410);
  }

  // The next bits, highest first; zeros before the start of the payload.
  BF16CODECS_DEVICE uint32_t next_bits() const {
    const uint32_t end = (bits_ + 7) / 8;
    if (end >= 4) {
      const auto last = load_any<uint32_t>(payload_ + end - 4);
      return last << (8 * end - bits_);
    }
    uint32_t all = 0;
    // The same bound for all threads: see Strips.
    BF16CODECS_UNROLLED
    for (uint32_t i = 0; i < 3; ++i) all |= i < end ? uint32_t{payload_[i]} << 8 * i : 0;
    return all << (24 - bits_) << 8;
  }

  BF16CODECS_DEVICE void decode_singly(uint32_t n) {
    BF16CODECS_ROLLED
    for (; n != 0; --n) {
      const uint32_t entry = entry_of(next_bits());
      const uint32_t length = entry & 255;
      is_sound_ = length <= bits_ - begin_;
      if (!is_sound_) return;
      bits_ -= length;
      *--out_ = static_cast<uint8_t>(entry >> 8);
      --left_;
    }
  }

  const HuffmanTables<kTables>* tables_;
  unsigned table_at_;
  HuffmanWords* words_;
  unsigned words_at_;
  const uint8_t* payload_;
  uint32_t begin_, bits_;
  uint8_t* out_;
  uint32_t left_;
  bool is_sound_;

  // Set only if there are rounds. `high_`, `low_` and `next_` are consecutive words, whose first
  // `used_` modulo 64 bits are decoded; `word_` is the number of the third. Of the stream's quads,
  // `pushed_` have not been copied yet.
  uint32_t high_, low_, next_, used_;
  uint32_t word_, pushed_;
  const uint8_t* quads_;
  uint32_t skipped_, size_;
};

// Reads the table of a payload of n symbols, the one of this number, and gives its streams to the
// threads that have that table; returns false if the payload is invalid.
template <unsigned kTables>
BF16CODECS_DEVICE bool find_streams(const Warp& warp, HuffmanLengths& lengths,
                                    HuffmanTables<kTables>& tables, const uint8_t* payload,
                                    uint32_t size, uint8_t* plane, uint32_t n, unsigned number,
                                    PerThread<HuffmanStream<kTables>>& streams) {
  const unsigned first = kHuffmanStreams * number;
  const HuffmanLayout layout(n);
  const uint32_t table_size = read_code_lengths(warp, lengths, payload, size);
  if (table_size == 0) return false;
  const auto sizes = static_cast<uint32_t>(layout.sizes_bytes());
  if (size - table_size < sizes) return false;
  fill_table<kTables>(warp, lengths, tables, kHuffmanTable * number);
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
    const HuffmanStream<kTables> found(payload, 8 * begin, 8 * end, plane + last,
                                       last - static_cast<uint32_t>(layout.begin(stream)));
    // Selected without a branch: after one, the compiler no longer proves that threads go in
    // lockstep.
    streams[t] = stream < layout.streams ? found : streams[t];
  });
  return true;
}

// Decodes the streams of the threads whose bit in `of` is set, of at most so many symbols. Returns
// the threads whose streams are invalid.
template <unsigned kTables>
BF16CODECS_DEVICE uint32_t decode_streams(const Warp& warp, const HuffmanTables<kTables>& tables,
                                          HuffmanWords& words, uint32_t of, uint32_t symbols,
                                          PerThread<HuffmanStream<kTables>>& streams) {
  constexpr unsigned kRound = HuffmanStream<kTables>::kRound;
  warp.each([&](unsigned t) {
    const unsigned number = t / kHuffmanStreams % kTables;
    streams[t].give(tables, kHuffmanTable * number, words, t);
    if ((of >> t & 1) != 0) streams[t].start();
  });
  // One loop for all threads: in loops of their own, they went apart, and 20 of 32 were active.
  for (uint32_t left = symbols; left >= kRound; left -= kRound) {
    warp.each([&](unsigned t) {
      if (streams[t].has_round()) streams[t].hold();
      wait_for_copies<1>();
    });
    warp.sync();
    warp.each([&](unsigned t) { streams[t].round(); });
  }
  warp.each([](unsigned) { wait_for_copies<0>(); });  // the memory may have other uses
  return warp.ballot([&](unsigned t) { return (of >> t & 1) != 0 && !streams[t].finish(); });
}

// Decodes a payload to a plane of n symbols; returns false if it is invalid.
BF16CODECS_DEVICE bool decode_huffman(const Warp& warp, HuffmanMemory& memory,
                                      const uint8_t* payload, uint32_t size, uint8_t* plane,
                                      uint32_t n) {
  PerThread<HuffmanStream<1>> streams;
  warp.each([&](unsigned t) { streams[t] = {}; });
  if (!find_streams<1>(warp, memory.lengths, memory.tables, payload, size, plane, n, 0, streams)) {
    return false;
  }
  const HuffmanLayout layout(n);
  const uint32_t of = threads_before(layout.streams);
  const auto longest = static_cast<uint32_t>(layout.longest());
  const uint32_t bad = decode_streams<1>(warp, memory.tables, memory.words, of, longest, streams);
  warp.sync();
  return bad == 0;
}

}  // namespace bf16codecs::cuda
