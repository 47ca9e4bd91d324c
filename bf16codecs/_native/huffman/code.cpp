#include "huffman/code.h"

#include <algorithm>
#include <cstring>

#include "format/errors.h"

namespace bf16codecs {
namespace {

// Nibbles of the table of lengths. 1 to 11 are a symbol's length.
constexpr unsigned kAbsent = 0;       // a symbol without a code
constexpr unsigned kAbsentRun = 15;   // a run of them: two more nibbles hold its length - 1
constexpr unsigned kShortestRun = 4;  // a run of three is as short in kAbsent nibbles

constexpr unsigned kMaxSymbols = 256;

// One level of package-merge: its items, which are all leaves and the pairs of the level before, by
// ascending weight; where weights are equal, leaves come first. Weights are sums of counts of a
// plane of at most 2^22 symbols over at most 11 levels, and fit in 32 bits.
struct Level {
  uint16_t leaves_before[2 * kMaxSymbols];  // leaves among the items before this one
  uint32_t weights[2 * kMaxSymbols];
  unsigned items;
};

void merge_level(const uint32_t* leaves, unsigned n, const Level* before, Level& level) {
  const unsigned pairs = before ? before->items / 2 : 0;
  unsigned leaf = 0, pair = 0;
  level.items = n + pairs;
  for (unsigned i = 0; i < level.items; ++i) {
    level.leaves_before[i] = static_cast<uint16_t>(leaf);
    const uint32_t package =
        pair < pairs ? before->weights[2 * pair] + before->weights[2 * pair + 1] : UINT32_MAX;
    if (leaf < n && leaves[leaf] <= package) {
      level.weights[i] = leaves[leaf++];
    } else {
      level.weights[i] = package;
      ++pair;
    }
  }
}

class NibbleWriter {
 public:
  explicit NibbleWriter(uint8_t* out) : out_(out) {}
  void put(unsigned value) {
    if (nibbles_ % 2 == 0) out_[nibbles_ / 2] = 0;
    out_[nibbles_ / 2] |= static_cast<uint8_t>(value << (nibbles_ % 2 == 0 ? 4 : 0));
    ++nibbles_;
  }
  size_t bytes() const { return (nibbles_ + 1) / 2; }

 private:
  uint8_t* out_;
  size_t nibbles_ = 0;
};

class NibbleReader {
 public:
  NibbleReader(const uint8_t* bytes, size_t size) : bytes_(bytes), size_(size) {}
  unsigned get() {
    if (nibbles_ / 2 == size_) throw CorruptDataError("Huffman table is cut off");
    const unsigned byte = bytes_[nibbles_ / 2];
    return nibbles_++ % 2 == 0 ? byte >> 4 : byte & 15;
  }
  size_t bytes() {
    if (nibbles_ % 2 != 0 && get() != 0) throw CorruptDataError("Huffman table: bad padding");
    return nibbles_ / 2;
  }

 private:
  const uint8_t* bytes_;
  size_t size_;
  size_t nibbles_ = 0;
};

}  // namespace

// Package-merge (Larmore and Hirschberg 1990). The total length of a code is least if the 2n - 2
// cheapest items of the last level are taken, with all that their pairs are made of; a leaf's
// length is the number of levels in which it is taken. `taken` is how many items of a level are:
// leaves among them, and pairs, which take two items each of the level before.
void limited_code_lengths(const uint32_t histogram[256], uint8_t lengths[256]) {
  uint64_t sorted[kMaxSymbols];
  unsigned n = 0;
  for (unsigned s = 0; s < kMaxSymbols; ++s) {
    lengths[s] = 0;
    if (histogram[s] != 0) sorted[n++] = uint64_t{histogram[s]} << 8 | s;
  }
  std::sort(sorted, sorted + n);
  uint32_t leaves[kMaxSymbols];
  for (unsigned i = 0; i < n; ++i) leaves[i] = static_cast<uint32_t>(sorted[i] >> 8);

  Level levels[kMaxCodeLength];
  for (unsigned k = 0; k < kMaxCodeLength; ++k) {
    merge_level(leaves, n, k > 0 ? &levels[k - 1] : nullptr, levels[k]);
  }
  unsigned taken = 2 * n - 2;
  for (unsigned k = kMaxCodeLength; k-- > 0 && taken > 0;) {
    const Level& level = levels[k];
    const unsigned chosen = taken < level.items ? level.leaves_before[taken] : n;
    for (unsigned i = 0; i < chosen; ++i) ++lengths[sorted[i] & 255];
    taken = 2 * (taken - chosen);
  }
}

CanonicalOrder::CanonicalOrder(const uint8_t lengths[256]) : count(0) {
  // Most symbols are usually absent: a branch skips them faster than counting them would.
  uint8_t present[kMaxSymbols];
  unsigned of_length[kMaxCodeLength + 1] = {};
  for (unsigned s = 0; s < kMaxSymbols; ++s) {
    if (lengths[s] == 0) continue;
    present[count++] = static_cast<uint8_t>(s);
    ++of_length[lengths[s]];
  }
  unsigned next[kMaxCodeLength + 1] = {};
  for (unsigned l = 1; l <= kMaxCodeLength; ++l) next[l] = next[l - 1] + of_length[l - 1];
  for (unsigned i = 0; i < count; ++i) symbols[next[lengths[present[i]]]++] = present[i];
}

size_t write_code_lengths(const uint8_t lengths[256], uint8_t* out) {
  unsigned end = kMaxSymbols;
  while (lengths[end - 1] == 0) --end;
  NibbleWriter writer(out);
  for (unsigned s = 0; s < end;) {
    if (lengths[s] != 0) {
      writer.put(lengths[s++]);
      continue;
    }
    unsigned run = 1;
    while (lengths[s + run] == 0) ++run;
    s += run;
    if (run < kShortestRun) {
      for (; run > 0; --run) writer.put(kAbsent);
    } else {
      writer.put(kAbsentRun);
      writer.put((run - 1) >> 4);
      writer.put((run - 1) & 15);
    }
  }
  return writer.bytes();
}

size_t read_code_lengths(const uint8_t* bytes, size_t size, uint8_t lengths[256]) {
  constexpr unsigned kWhole = 1u << kMaxCodeLength;
  NibbleReader reader(bytes, size);
  std::memset(lengths, 0, kMaxSymbols);
  unsigned symbol = 0;
  unsigned used = 0;  // of the code space, in units of 2^-kMaxCodeLength
  while (used < kWhole) {
    const unsigned nibble = reader.get();
    unsigned absent = 0;
    if (nibble == kAbsent) {
      absent = 1;
    } else if (nibble == kAbsentRun) {
      absent = reader.get() << 4;
      absent = (absent | reader.get()) + 1;
    } else if (nibble > kMaxCodeLength) {
      throw CorruptDataError("Huffman table: no such code length");
    }
    if (symbol + (absent != 0 ? absent : 1) > kMaxSymbols) {
      throw CorruptDataError("Huffman table: more than 256 symbols");
    }
    if (absent == 0) {
      lengths[symbol] = static_cast<uint8_t>(nibble);
      used += kWhole >> nibble;
    }
    symbol += absent != 0 ? absent : 1;
  }
  if (used > kWhole) throw CorruptDataError("Huffman table: lengths exceed the code space");
  return reader.bytes();
}

}  // namespace bf16codecs
