#pragma once

// Items from those of a base and coded differences (docs/format_differences.md, "Numbers"), with
// the formulas of delta/numbers.cpp.

#include "cuda/job.h"
#include "cuda/warp.h"

namespace bf16codecs::cuda {

inline constexpr unsigned kOrdered = 0, kPlain = 1;  // relations; the third is exclusive or

// An item of at most as many bits as T has. Items are modulo 2^bits, magnitudes modulo 2^(bits -
// 1).
template <typename T>
class DeltaItem {
 public:
  BF16CODECS_DEVICE DeltaItem(const Section& section, unsigned bits, T base, int scale)
      : section_(section), sign_at_(bits - 1), base_(base), scale_(scale) {}

  // The item's index in the section's `class_of`.
  BF16CODECS_DEVICE unsigned place() const {
    const int exponent = static_cast<int>(magnitude(base_) >> (section_.fraction - 1));
    const int place = (scale_ - 16 * exponent + section_.origin) >> section_.shift;
    return static_cast<unsigned>(clamp(place, 0, section_.places - 1));
  }

  // Returns the item of a coded number and its low bytes.
  BF16CODECS_DEVICE T add(unsigned number, unsigned c, T low) const {
    const unsigned low_bits = 8 * section_.low;
    if (c < section_.near) return whole(add_far(whole(T{number} << low_bits | low)));
    const unsigned r = section_.near_raw;
    const unsigned y = number >> (r + 1) << r | (number & ((1u << r) - 1));
    const T sign = base_ >> sign_at_ ^ (number >> r & 1);
    const T x = anchor() + unzigzag(whole(T{y} << low_bits | low));
    return magnitude(x) | sign << sign_at_;
  }

 private:
  BF16CODECS_DEVICE T magnitude(T item) const { return item & ((T{1} << sign_at_) - 1); }
  BF16CODECS_DEVICE T whole(T item) const { return item & ((T{2} << sign_at_) - 1); }
  BF16CODECS_DEVICE bool is_negative(T item) const { return (item >> sign_at_ & 1) != 0; }
  BF16CODECS_DEVICE T order(T item) const {
    return is_negative(item) ? item ^ ((T{1} << sign_at_) - 1) : item;
  }
  BF16CODECS_DEVICE static T unzigzag(T z) { return z >> 1 ^ (T{0} - (z & 1)); }

  // The magnitude that near classes count from.
  BF16CODECS_DEVICE T anchor() const {
    const T scale = whole(static_cast<T>(scale_ >> 4) << (section_.fraction - 1));
    return magnitude(base_) < scale ? scale : magnitude(base_);
  }

  BF16CODECS_DEVICE T add_far(T z) const {
    if (section_.relation == kPlain) return base_ + unzigzag(z);
    if (section_.relation != kOrdered) return base_ ^ z;
    const T d = unzigzag(z);
    return order(whole(order(base_) + (is_negative(base_) ? T{0} - d : d)));
  }

  const Section& section_;
  const unsigned sign_at_;
  const T base_;
  const int scale_;
};

}  // namespace bf16codecs::cuda
