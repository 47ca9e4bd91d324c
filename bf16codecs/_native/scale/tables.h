#pragma once

// Inside the scale model: symbols, frequencies, and the scales of items (docs/format_scale.md,
// "Symbols", "Frequencies" and "Scales").

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "grid/grid.h"
#include "grid/keys.h"
#include "scale/model.h"

namespace bf16codecs::scale {

using grid::KeyFormat;
using grid::kScaleSteps;
using grid::RowScales;

inline constexpr unsigned kModelBits = 12;  // frequencies are in 4096ths
inline constexpr unsigned kModelTotal = 1u << kModelBits;
inline constexpr unsigned kMaxSymbols = 56;
inline constexpr unsigned kSymbolStride = 64;
inline constexpr int kLowestExponent = -22, kHighestExponent = 6;  // of a symbol, over the scale's
inline constexpr unsigned kLookupBits = 4;  // fraction bits that distinguish symbols, at most
inline constexpr size_t kLanes = 4;
// The last items that are coded: their keys are what the lanes begin with in an encoder.
inline constexpr size_t kSeedItems = 2 * kLanes;
inline constexpr size_t kTile = 4096;  // items that all passes handle before the next ones

// The number of a key's fraction bits that distinguish symbols.
inline unsigned lookup_bits(const KeyFormat& format) {
  return std::min(format.fraction, kLookupBits);
}

// A symbol stands for 2^raw_bits consecutive keys, from `base` on, counted from the key
// whose exponent is the scale's; the zero symbol and the escape count from key 0.
struct Symbol {
  int32_t base;
  uint8_t raw_bits;
  bool absolute;
};

struct SymbolSet {
  explicit SymbolSet(const KeyFormat& format);

  unsigned size = 0;  // the zero symbol and the escape are the last two
  std::array<Symbol, kMaxSymbols> symbol;
  std::array<int32_t, kMaxSymbols> log_width, log_center;  // 4096ths of an octave

  unsigned zero() const { return size - 2; }
  unsigned escape() const { return size - 1; }

 private:
  void add_range(const KeyFormat& format, int exponent, unsigned octaves_log2);
  void add_octave(const KeyFormat& format, int exponent, unsigned split_bits);
};

// log2, in 4096ths, of a Gaussian's mass in the symbol, up to a constant, for a scale that is
// `fraction` 16ths of an octave above its exponent.
int gaussian_log_mass(const SymbolSet& symbols, unsigned symbol, unsigned fraction);

// The place of the symbol on the curve, in 4096ths of the distance of two nodes, for the same
// scale.
int curve_place(const SymbolSet& symbols, unsigned symbol, unsigned fraction);

using Frequencies = std::array<std::array<uint16_t, kSymbolStride>, kScaleSteps>;
using SymbolCounts = std::array<std::array<uint32_t, kSymbolStride>, kScaleSteps>;

// Finds an item's symbol.
class SymbolLookup {
 public:
  SymbolLookup(const KeyFormat& format, const SymbolSet& symbols);

  // Gives the escape to keys whose symbol has no frequency.
  void restrict_to(const SymbolSet& symbols, const Frequencies& frequencies);

  unsigned find(uint16_t key, unsigned scale) const {
    if (key == 0 && has_zero_) return zero_;
    const unsigned index = (key >> shift_) - (scale / kScaleSteps << lookup_bits_) + below_;
    return index < size_ ? symbol_[scale % kScaleSteps][index] : escape_;
  }

 private:
  static constexpr unsigned kOctaves = kHighestExponent - kLowestExponent + 1;
  unsigned shift_, lookup_bits_, below_, size_, zero_, escape_;
  bool has_zero_ = true;
  std::array<std::array<uint8_t, kOctaves << kLookupBits>, kScaleSteps> symbol_;
};

void model_frequencies(const SymbolSet& symbols, const Section& section, Frequencies& frequencies);

// Gives the scales of a block's items.
class ScaleMap {
 public:
  ScaleMap(const KeyFormat& format, const Section& section, const RowScales& rows, uint64_t first);

  // Scales of items [begin, begin + n) of the block.
  void fill(size_t begin, size_t n, uint16_t* scales) const;

 private:
  const Section& section_;
  const RowScales& rows_;
  int max_scale_;
  uint64_t first_;
};

}  // namespace bf16codecs::scale
