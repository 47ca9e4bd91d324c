#pragma once

// The scale model, of BF16Arithmetic(level="best") in format version 1 (docs/format_scale.md). It
// codes the leading two bytes of every item (planes 0 and 1, or plane 0 alone where items have one
// byte) with one symbol and raw bits, given the scale of the item's row and column.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/layout.h"
#include "grid/grid.h"

namespace bf16codecs::scale {

inline constexpr unsigned kCurveNodes = 44;

// The grid and the densities of one section.
struct Section : grid::Grid {
  std::array<int16_t, kCurveNodes> curve{};           // 8 log2 of density over a Gaussian's
  uint16_t zero_frequency = 0, escape_frequency = 1;  // of 4096
  // For encoding: the inverse scales of the columns, with which rows are estimated.
  std::vector<uint32_t> inverse_columns;
};

class Model {
 public:
  // Fits a model to n items; `row` is the length of a row in items, 0 if that is not known.
  static Model fit(const Layout& layout, const uint8_t* items, size_t n, size_t row);

  // Reads a model that write() wrote, for a frame of n items. Keeps the sections of items [first,
  // last) alone. Throws CorruptDataError.
  static Model read(const Layout& layout, const uint8_t* bytes, size_t size, uint64_t n,
                    uint64_t first, uint64_t last);
  std::vector<uint8_t> write() const;

  const Layout& layout() const { return layout_; }
  // The section of the item with this index in the frame.
  const Section& section(uint64_t item) const {
    return sections_[static_cast<size_t>(item / grid::kSectionItems - first_section_)];
  }

 private:
  Layout layout_;
  uint64_t first_section_ = 0;  // of those that are kept
  std::vector<Section> sections_;
};

// Codes items [first, first + n) of the frame, which `items` points at. Returns the payload's
// size, or 0 if it would need more than `capacity` bytes, or if there are too few items; never
// writes past out + capacity.
size_t encode(const Model& model, const uint8_t* items, uint64_t first, size_t n, uint8_t* out,
              size_t capacity);

// Decodes n items, the first of them at `first` in the frame, into planes[0] and planes[1].
// Reads nothing outside the payload. Throws CorruptDataError.
void decode(const Model& model, const uint8_t* payload, size_t size, uint64_t first, size_t n,
            uint8_t* const planes[]);

}  // namespace bf16codecs::scale
