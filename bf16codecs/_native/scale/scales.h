#pragma once

// The encoder's estimates of row and column scales. They use integers alone, so that the encoder's
// bytes are the same on every platform.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "grid/classes.h"
#include "scale/tables.h"

namespace bf16codecs::scale {

using grid::choose_classes;
using grid::cost_of_one;
using grid::kScaleUnit;
using grid::mean_log_scale;
using grid::Scales;

// |x| as a number, for keys near an exponent. Far smaller ones are 0, far larger ones saturate.
class Magnitudes {
 public:
  Magnitudes(const KeyFormat& format, int exponent);

  uint32_t operator[](uint16_t key) const { return values_[key >> shift_]; }
  // log2 of a Gaussian's standard deviation, in 4096ths, from a sum of count magnitudes that
  // were multiplied with inverse scales.
  int log_scale(uint64_t sum, uint64_t count) const;

 private:
  unsigned shift_;
  int exponent_;
  std::vector<uint32_t> values_;
};

// The inverse scales by which the sums below multiply: 2^(-log_scale / 4096) in 1024ths.
std::vector<uint32_t> inverse_scales(const std::vector<int>& log_scales);

// The inverse scales of a section's columns; none if it has none.
std::vector<uint32_t> inverse_columns(const Section& section);

// Estimates the scales of the rows of items [first, first + n), given inverse scales of the
// columns.
Scales row_scales(const Magnitudes& magnitudes, const uint16_t* keys, uint64_t first, size_t n,
                  uint64_t row_length, const std::vector<uint32_t>& columns);

// Estimates the scales of the columns, given inverse scales of the rows.
Scales column_scales(const Magnitudes& magnitudes, const uint16_t* keys, uint64_t first, size_t n,
                     uint64_t row_length, uint64_t period, const std::vector<uint32_t>& rows);

// Finds the length of the rows in which scales repeat, 0 if there are none: the shortest lag at
// which logarithms of the magnitudes correlate.
size_t find_row(const grid::KeyFormat& format, const std::vector<uint16_t>& keys);

}  // namespace bf16codecs::scale
