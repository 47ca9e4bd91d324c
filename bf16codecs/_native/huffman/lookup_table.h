#pragma once

#include <cstddef>
#include <cstdint>

#include "huffman/code.h"
#include "kernels/huffman.h"

namespace bf16codecs {

// The decoder's table: for each window of kLookupBits bits, the whole codes at its beginning
// (LookupEntry in kernels/huffman.h).
class LookupTable {
 public:
  // `lengths` must be those of a complete code.
  explicit LookupTable(const uint8_t lengths[256]);

  // Indexed by the next kLookupBits bits, the first highest.
  const LookupEntry* entries() const { return windows_ + (size_t{1} << kLookupBits); }
  unsigned length(uint8_t symbol) const { return lengths_[symbol]; }

 private:
  void build_window(unsigned width, const CanonicalOrder& order);

  // The table of windows of w bits is at [2^w, 2^(w + 1)). Wider windows are composed of narrower
  // ones.
  alignas(64) LookupEntry windows_[size_t{2} << kLookupBits];
  uint8_t lengths_[256];
};

}  // namespace bf16codecs
