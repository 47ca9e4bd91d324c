#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "workspace.h"

namespace bf16codecs {

// Interleaved range coding of one plane of one block (docs/format.md). Both encoders write a
// payload for a plane of n symbols to out and return its size, or 0 if that would be more than
// capacity bytes. They collect the words in `words`, because they come last to first.

// The entries of a plane in the pairs mode.
struct PairsEntries {
  unsigned n = 0;
  bool has_escape = false;  // the last entry
  uint16_t frequency[16] = {};
  uint8_t symbol[16] = {};
};

struct PairsChoice {
  PairsEntries entries;
  uint64_t size = UINT64_MAX;  // of the counted symbols, in units of 2^-16 bit
};

// The entries with the smallest coded size; none, with size UINT64_MAX, where no table keeps the
// rules. If the counts are a sample, there is an escape for the symbols that it missed.
PairsChoice choose_pairs(const uint32_t counts[256], bool is_sample);

size_t pairs_encode(const uint8_t* plane, size_t n, const PairsEntries& entries, uint8_t* out,
                    size_t capacity, Scratch& words);

// `counts` are exact, and at least two of them are not zero.
size_t wide_encode(const uint8_t* plane, size_t n, const uint32_t counts[256], uint8_t* out,
                   size_t capacity, Scratch& words);

// Decodes a payload into plane, which has room for n bytes. Throws CorruptDataError.
void wide_decode(const uint8_t* payload, size_t size, uint8_t* plane, size_t n);

// Decodes a payload of the pairs mode in pieces, so that a caller can use what is decoded while
// it is in the first-level cache.
class PairsReader {
 public:
  // Throws CorruptDataError for a payload that cannot hold n symbols.
  PairsReader(const uint8_t* payload, size_t size, size_t n);
  PairsReader(const PairsReader&) = delete;  // it points into itself
  PairsReader& operator=(const PairsReader&) = delete;

  size_t step_symbols() const { return kPairSymbols * state_.groups; }
  size_t steps() const { return steps_; }

  // Decode the next steps into a plane, or merged with the low plane into 16-bit items.
  void decode(uint8_t* plane, size_t steps);
  void decode16(const uint8_t* low, uint8_t* items, size_t steps);

  // The symbols after the last whole step.
  const uint8_t* remainder() const { return remainder_; }
  size_t remainder_size() const { return remainder_size_; }

  // Checks that everything was used, as it is in every frame that an encoder wrote.
  void finish() const;

 private:
  template <typename Run>
  void run(size_t steps, Run kernel);
  void enter_tail();

  PairsTable table_;
  PairsDecoder state_;
  size_t steps_;
  const uint8_t* limit_;
  const uint8_t* words_end_;
  const uint8_t* remainder_;
  size_t remainder_size_;
  bool in_tail_ = false;
  // The last words, with room after them for a whole step's reads.
  uint8_t tail_[3 * kWordMargin];
};

// Groups of lanes for a plane of n symbols: more lanes hide more latency, and each costs the 16
// bits by which its state exceeds the information in it.
unsigned groups_log2(size_t n);

}  // namespace bf16codecs
