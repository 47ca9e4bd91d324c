#include "scale/scales.h"

#include <algorithm>

#include "scale/fixed_point.h"

namespace bf16codecs::scale {
namespace {

constexpr int kUnitBits = 15;           // a magnitude of 1 at the exponent
constexpr uint32_t kLargest = 1 << 24;  // times 2^16 inverse scale, 2^22 times: below 2^63
constexpr int kInverseBits = 10;
constexpr int kMaxInverse = 6 * kOctave;
constexpr int kDeviation = 1334;  // log2 of a Gaussian's standard deviation over its mean |x|
constexpr int kHalfLog2E = 2955;  // log2(e) / 2 in 4096ths

// Bits lost an item, in 4096ths, where a Gaussian's scale is taken too large or too small.
class Mismatch {
 public:
  constexpr Mismatch() {
    for (int i = 0; i < kSize; ++i) {
      const int excess = (i - kSize / 2) * kStep;
      const auto square = static_cast<int64_t>(exp2_floor(16 * kOctave - 2 * excess) >> 4);
      const int64_t loss = excess + (((square - kOctave) * kHalfLog2E) >> 12);
      loss_[i] = loss < 0 ? 0 : static_cast<uint32_t>(loss);
    }
  }

  uint64_t operator()(int excess) const {
    return loss_[std::clamp((excess + kStep / 2) / kStep + kSize / 2, 0, kSize - 1)];
  }

 private:
  static constexpr int kStep = kOctave / 64, kSize = 16 * 64;
  uint32_t loss_[kSize] = {};
};
constexpr Mismatch mismatch;

int rounded_ratio(int x, int unit) {
  return (x >= 0 ? x + unit / 2 : x - unit / 2) / unit;
}

}  // namespace

Magnitudes::Magnitudes(const KeyFormat& format, int exponent)
    : shift_(format.fraction - format.lookup_bits()), exponent_(exponent) {
  const unsigned g = format.lookup_bits();
  values_.resize(size_t{1} << (format.bits - shift_));
  for (size_t i = 0; i < values_.size(); ++i) {
    const int e = static_cast<int>(i >> g);
    const auto part = static_cast<uint32_t>(2 * (i & ((size_t{1} << g) - 1)) + 1);
    // Exponent 0 has no leading one, and the weight of exponent 1.
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
         kDeviation;
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
                  uint64_t run, const std::vector<uint32_t>& columns) {
  const size_t rows = run ? static_cast<size_t>((first + n - 1) / run - first / run) + 1 : 1;
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
  for_each_piece(run, columns.size(), first, n, add);
  return to_scales(magnitudes, sums, std::move(counts));
}

Scales column_scales(const Magnitudes& magnitudes, const uint16_t* keys, uint64_t first, size_t n,
                     uint64_t run, uint64_t period, const std::vector<uint32_t>& rows) {
  std::vector<uint64_t> sums(period), counts(period);
  const auto add = [&](size_t begin, size_t end, size_t row, size_t column) {
    const uint64_t inverse = rows[row];
    uint64_t* sum = sums.data() + column;
    uint64_t* count = counts.data() + column;
    for (size_t i = begin; i < end; ++i) {
      sum[i - begin] += magnitudes[keys[i]] * inverse;
      count[i - begin] += keys[i] != 0;
    }
  };
  for_each_piece(run, period, first, n, add);
  return to_scales(magnitudes, sums, std::move(counts));
}

int mean_log_scale(const Scales& scales) {
  int64_t sum = 0, count = 0;
  for (size_t i = 0; i < scales.count.size(); ++i) {
    sum += scales.log_scale[i] * static_cast<int64_t>(scales.count[i]);
    count += static_cast<int64_t>(scales.count[i]);
  }
  return count ? static_cast<int>(sum / count) : 0;
}

uint64_t cost_of_one(const Scales& scales, int center) {
  uint64_t cost = 0;
  for (size_t i = 0; i < scales.count.size(); ++i) {
    cost += scales.count[i] * mismatch(center - scales.log_scale[i]);
  }
  return cost;
}

namespace {

// Prices of classes by how often each is used, in 4096ths of a bit.
class Prices {
 public:
  explicit Prices(const std::vector<int16_t>& classes) {
    const auto [least, most] = std::minmax_element(classes.begin(), classes.end());
    least_ = *least;
    std::vector<uint32_t> uses(static_cast<size_t>(*most - *least + 1));
    for (const int16_t c : classes) ++uses[static_cast<size_t>(c - least_)];
    const int log_total = log2_floor(classes.size());
    unused_ = log_total + kNew;
    for (const uint32_t n : uses) {
      prices_.push_back(n ? log_total - log2_floor(n) : unused_);
      if (n) to_learn_ += kNew;
    }
  }

  int of(int c) const {
    const auto place = static_cast<size_t>(c - least_);  // wraps to a large one below the least
    return place < prices_.size() ? prices_[place] : unused_;
  }
  // What an adaptive coder pays to learn them.
  uint64_t to_learn() const { return to_learn_; }

 private:
  static constexpr int kNew = 4 * kOctave;
  std::vector<int> prices_;
  int least_, unused_;
  uint64_t to_learn_ = 0;
};

}  // namespace

uint64_t choose_classes(const Scales& scales, int center, int unit, std::vector<int16_t>& classes) {
  constexpr int kRounds = 2, kReach = 3;
  const size_t n = scales.count.size();
  const auto wanted = [&](size_t i) {
    return scales.count[i] ? std::clamp(rounded_ratio(scales.log_scale[i] - center, unit),
                                        kReach - kMaxClass, kMaxClass - kReach)
                           : 0;
  };
  classes.resize(n);
  for (size_t i = 0; i < n; ++i) classes[i] = static_cast<int16_t>(wanted(i));
  uint64_t cost = 0;
  for (int round = 0; round < kRounds; ++round) {
    const Prices prices(classes);
    cost = prices.to_learn();
    for (size_t i = 0; i < n; ++i) {
      uint64_t best = UINT64_MAX;
      const auto consider = [&](int c) {
        const uint64_t loss = mismatch(c * unit + center - scales.log_scale[i]);
        const uint64_t price = scales.count[i] * loss + static_cast<uint64_t>(prices.of(c));
        if (price < best) {
          best = price;
          classes[i] = static_cast<int16_t>(c);
        }
      };
      const int middle = wanted(i);
      for (int c = middle - kReach; c <= middle + kReach; ++c) consider(c);
      consider(0);
      cost += best;
    }
  }
  return cost;
}

}  // namespace bf16codecs::scale
