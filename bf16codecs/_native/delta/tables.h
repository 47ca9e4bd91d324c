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

// What a class's tables are made of.
struct ClassCode {
  uint8_t raw = 0;                               // r
  std::array<uint8_t, kDeltaEntries> weights{};  // g, 0 of what does not occur
};

// The raw bits q of entry j.
inline unsigned raw_bits(const ClassCode& code, unsigned entry) {
  return entry == kDeltaEscape ? 0 : kDeltaBits[entry] + code.raw;
}

// What the frequency of an entry is a multiple of: otherwise a state might need two words.
inline unsigned frequency_unit(unsigned raw_bits) {
  return raw_bits > 4 ? 1u << (raw_bits - 4) : 1;
}

// Chooses weights by how often each entry occurs in a class of items of `width` bytes.
void choose_weights(const uint32_t counts[kDeltaEntries], size_t width, ClassCode& code);

// What entries that occur so often take, in 4096ths of a bit.
uint64_t coded_bits(const uint32_t counts[kDeltaEntries], size_t width, const ClassCode& code);

using Frequencies = std::array<uint16_t, kDeltaEntries>;

// Returns false if no frequencies with the sum kTotal follow from the weights.
bool make_frequencies(const ClassCode& code, Frequencies& frequencies);

// Tables of several classes, with memory of their own.
class Tables {
 public:
  // To encode with. Every class must have frequencies.
  explicit Tables(const std::vector<ClassCode>& classes);
  // To decode with these kernels, too.
  Tables(const std::vector<ClassCode>& classes, const DeltaKernels& kernels);
  Tables(Tables&&) = default;  // it points into itself
  Tables& operator=(Tables&&) = default;

  const DeltaTables& get() const { return tables_; }

 private:
  DeltaTables tables_{};
  std::vector<uint32_t> slots_;
};

}  // namespace bf16codecs::delta
