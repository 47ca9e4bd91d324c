#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "workspace.h"

namespace bf16codecs {

// Interleaved range coding of one plane of one block (docs/format.md, "Interleaved rANS"). Both
// encoders write a payload for a plane of n symbols to out and return its size, or 0 if that would
// be more than capacity bytes. They collect the words in `words`, because words are made from the
// last to the first.

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

// Chooses the entries with the smallest coded size; none, with size UINT64_MAX, if no table keeps
// the rules. If the counts are of a sample, there is an escape for the symbols that it missed.
PairsChoice choose_pairs(const uint32_t counts[256], bool is_sample);

// Wide tables decode several times slower than pairs. They are taken where they save this many
// 2^-16 bits per symbol: 0.125. Exponents lose 0.01 bits by the pairs' short probabilities.
inline constexpr uint64_t kWideSaving = 1 << 13;

// Whether pairs are taken for symbols that are counted.
bool has_good_pairs(const uint32_t counts[256]);

// `log2_groups` is 0 to 2, of the groups of lanes.
size_t pairs_encode(const uint8_t* plane, size_t n, const PairsEntries& entries,
                    unsigned log2_groups, uint8_t* out, size_t capacity, Scratch& words);

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

  // Throws CorruptDataError unless all words and escapes were used and all lanes ended at 2^16, as
  // in every frame that an encoder wrote.
  void finish() const;

 private:
  template <typename Run>
  void run(size_t steps, Run kernel);
  void enter_tail();

  // In the payload or in tail_: a kernel runs while its words are not past limit_, from which on
  // kWordMargin bytes are readable.
  PairsTable table_;
  PairsDecoder state_;
  size_t steps_;
  const uint8_t* limit_;
  const uint8_t* words_end_;
  const uint8_t* remainder_;
  size_t remainder_size_;
  bool in_tail_ = false;
  // The last words, fewer than kWordMargin bytes, with room after them for a step's reads.
  uint8_t tail_[3 * kWordMargin];
};

// log2 of the groups of lanes for a plane of n symbols. More lanes hide more latency; each costs
// the 16 bits by which its state exceeds the information in it: 128 lanes cost 0.0078 bits per
// symbol in a plane of 2^18, 0.031 in one of 2^16 (docs/design_codecs.md, "Lanes and block size").
unsigned groups_log2(size_t n);

}  // namespace bf16codecs
