#include "scale/scales.h"

#include <algorithm>

#include "grid/fixed_point.h"
#include "grid/grid.h"

namespace bf16codecs::scale {

using grid::exp2_floor;
using grid::for_each_piece;
using grid::kOctave;
using grid::log2_floor;

namespace {

constexpr int kUnitBits = 15;           // a magnitude of 1 at the exponent
constexpr uint32_t kLargest = 1 << 24;  // so that sums of 2^22 products with 2^16 are below 2^63
constexpr int kInverseBits = 10;
constexpr int kMaxInverse = 6 * kOctave;

}  // namespace

Magnitudes::Magnitudes(const KeyFormat& format, int exponent)
    : shift_(format.fraction - lookup_bits(format)), exponent_(exponent) {
  const unsigned g = lookup_bits(format);
  values_.resize(size_t{1} << (format.bits - shift_));
  for (size_t i = 0; i < values_.size(); ++i) {
    const int e = static_cast<int>(i >> g);
    const auto part = static_cast<uint32_t>(2 * (i & ((size_t{1} << g) - 1)) + 1);
    // Numbers of exponent 0 have no leading one, and the place values of exponent 1.
    const uint32_t digits = e ? (2u << g) + part : 2 * part;
    const int shift = kUnitBits - static_cast<int>(g) - 1 + e - exponent;
    if (shift >= 0) {
      values_[i] = shift > 19 ? kLargest : std::min(kLargest, digits << shift);
    } else {
      values_[i] = shift < -31 ? 0 : digits >> -shift;
    }
  }
}

int Magnitudes::log_scale(uint64_t sum, uint64_t count) const {
  return log2_floor(sum) - log2_floor(count) + (exponent_ - kUnitBits - kInverseBits) * kOctave +
         grid::kDeviation;
}

std::vector<uint32_t> inverse_scales(const std::vector<int>& log_scales) {
  std::vector<uint32_t> inverse(log_scales.size());
  for (size_t i = 0; i < inverse.size(); ++i) {
    const int x = std::clamp(-log_scales[i], -kMaxInverse, kMaxInverse);
    inverse[i] = static_cast<uint32_t>(exp2_floor(x + kInverseBits * kOctave));
  }
  return inverse;
}

std::vector<uint32_t> inverse_columns(const Section& section) {
  const int unit = kScaleUnit << section.column_step;
  std::vector<int> log_scales;
  log_scales.reserve(section.columns.size());
  for (const int column : section.columns) log_scales.push_back(column * unit);
  return inverse_scales(log_scales);
}

namespace {

Scales to_scales(const Magnitudes& magnitudes, const std::vector<uint64_t>& sums,
                 std::vector<uint64_t> counts) {
  Scales scales{std::vector<int>(sums.size()), std::move(counts)};
  for (size_t i = 0; i < sums.size(); ++i) {
    if (sums[i] == 0) {
      scales.count[i] = 0;
    } else {
      scales.log_scale[i] = magnitudes.log_scale(sums[i], scales.count[i]);
    }
  }
  return scales;
}

}  // namespace

Scales row_scales(const Magnitudes& magnitudes, const uint16_t* keys, uint64_t first, size_t n,
                  uint64_t row_length, const std::vector<uint32_t>& columns) {
  const size_t rows =
      row_length ? static_cast<size_t>((first + n - 1) / row_length - first / row_length) + 1 : 1;
  std::vector<uint64_t> sums(rows), counts(rows);
  const auto add = [&](size_t begin, size_t end, size_t row, size_t column) {
    uint64_t sum = 0, count = 0;
    // Zeros have their own symbol and carry no scale.
    for (size_t i = begin; i < end; ++i) count += keys[i] != 0;
    if (columns.empty()) {
      for (size_t i = begin; i < end; ++i) sum += magnitudes[keys[i]];
      sum <<= kInverseBits;
    } else {
      const uint32_t* inverse = columns.data() + column;
      for (size_t i = begin; i < end; ++i) {
        sum += uint64_t{magnitudes[keys[i]]} * inverse[i - begin];
      }
    }
    sums[row] += sum;
    counts[row] += count;
  };
  for_each_piece(row_length, columns.size(), first, n, add);
  return to_scales(magnitudes, sums, std::move(counts));
}

Scales column_scales(const Magnitudes& magnitudes, const uint16_t* keys, uint64_t first, size_t n,
                     uint64_t row_length, uint64_t period, const std::vector<uint32_t>& rows) {
  const size_t columns = static_cast<size_t>(period);
  std::vector<uint64_t> sums(columns), counts(columns);
  const auto add = [&](size_t begin, size_t end, size_t row, size_t column) {
    const uint64_t inverse = rows[row];
    uint64_t* sum = sums.data() + column;
    uint64_t* count = counts.data() + column;
    for (size_t i = begin; i < end; ++i) {
      sum[i - begin] += magnitudes[keys[i]] * inverse;
      count[i - begin] += keys[i] != 0;
    }
  };
  for_each_piece(row_length, period, first, n, add);
  return to_scales(magnitudes, sums, std::move(counts));
}

}  // namespace bf16codecs::scale
