#include "huffman_table.h"

#include <algorithm>
#include <cstring>

namespace bf16codecs {
namespace {

constexpr LookupEntry kSymbolsMask = (LookupEntry{1} << kEntryBitsAt) - 1;

constexpr LookupEntry entry_of(uint8_t symbol, unsigned length) {
  return LookupEntry{symbol} | LookupEntry{length} << kEntryBitsAt | LookupEntry{1} << kEntryCountAt;
}

// out[i] = the symbols of `first`, then those of rest[i].
void prepend(LookupEntry first, const LookupEntry* rest, size_t n, LookupEntry* out) {
  for (size_t i = 0; i < n; ++i) {
    out[i] = ((rest[i] << 8 & kSymbolsMask) | (rest[i] & ~kSymbolsMask)) + first;
  }
}

}  // namespace

LookupTable::LookupTable(const uint8_t lengths[256]) {
  std::memcpy(lengths_, lengths, sizeof lengths_);
  const CanonicalOrder order(lengths_);
  const unsigned shortest = lengths_[order.symbols[0]];
  windows_[1] = 0;  // no bits, no symbols
  // A window's rest is at least `shortest` bits narrower: widths between these and the whole
  // are not needed.
  for (unsigned width = 1; width + shortest <= kLookupBits; ++width) build_window(width, order);
  build_window(kLookupBits, order);
}

void LookupTable::build_window(unsigned width, const CanonicalOrder& order) {
  LookupEntry* out = windows_ + (size_t{1} << width);
  LookupEntry* const end = out + (size_t{1} << width);
  for (unsigned i = 0; i < order.count; ++i) {
    const uint8_t symbol = order.symbols[i];
    const unsigned length = lengths_[symbol];
    if (length > width) break;
    const size_t n = size_t{1} << (width - length);
    const LookupEntry* rest = windows_ + n;
    const LookupEntry first = entry_of(symbol, length);
    // Only codes of one bit can give more symbols than an entry holds: of two bits or more, at
    // most five fit behind the first.
    if (width - length >= kEntrySymbols && lengths_[order.symbols[0]] == 1) {
      for (size_t k = 0; k < n; ++k) {
        LookupEntry e = rest[k];
        if (e >> kEntryCountAt == kEntrySymbols) {
          const uint8_t last = static_cast<uint8_t>(e >> (kEntryBitsAt - 8));
          e -= entry_of(0, lengths_[last]);
        }
        prepend(first, &e, 1, out + k);
      }
    } else {
      prepend(first, rest, n, out);
    }
    out += n;
  }
  std::fill(out, end, LookupEntry{0});  // the beginnings of longer codes
}

}  // namespace bf16codecs
