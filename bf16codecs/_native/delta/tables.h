#pragma once

// The tables of the difference mode (docs/format_differences.md, "The difference model").

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/delta.h"

namespace bf16codecs::delta {

inline constexpr unsigned kTotal = 4096;  // the sum of a class's frequencies
inline constexpr unsigned kMaxWeight = 96;

// A class as the model describes it.
struct ClassCode {
  uint8_t raw = 0;                               // r
  std::array<uint8_t, kDeltaEntries> weights{};  // g, 0 for entries that do not occur
};

// The raw bits q of entry j.
inline unsigned raw_bits(const ClassCode& code, unsigned entry) {
  return entry == kDeltaEscape ? 0 : kDeltaBits[entry] + code.raw;
}

// The number that the frequency of an entry must be a multiple of: with less, a state might need
// two words.
inline unsigned frequency_unit(unsigned raw_bits) {
  return raw_bits > 4 ? 1u << (raw_bits - 4) : 1;
}

// Chooses weights by how often each entry occurs in a class of items of `width` bytes.
void choose_weights(const uint32_t counts[kDeltaEntries], size_t width, ClassCode& code);

// The cost of entries that occur this often, in 4096ths of a bit.
uint64_t coded_bits(const uint32_t counts[kDeltaEntries], size_t width, const ClassCode& code);

using Frequencies = std::array<uint16_t, kDeltaEntries>;

// Makes the frequencies of a class; returns false if the weights make none with the sum kTotal.
bool make_frequencies(const ClassCode& code, Frequencies& frequencies);

// Tables of several classes, with memory of their own.
class Tables {
 public:
  // Makes tables for encoding. The weights of every class must make frequencies.
  explicit Tables(const std::vector<ClassCode>& classes);
  // Makes tables for encoding and for decoding with these kernels.
  Tables(const std::vector<ClassCode>& classes, const DeltaKernels& kernels);
  Tables(Tables&&) = default;  // it points into itself
  Tables& operator=(Tables&&) = default;

  const DeltaTables& get() const { return tables_; }

 private:
  DeltaTables tables_{};
  std::vector<uint32_t> slots_;
};

}  // namespace bf16codecs::delta
