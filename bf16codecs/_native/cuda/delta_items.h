#pragma once

// Items from those of a base and coded differences (docs/format_differences.md, "Numbers"), with
// the formulas of delta/numbers.cpp.

#include "cuda/job.h"
#include "cuda/warp.h"

namespace bf16codecs::cuda {

inline constexpr unsigned kOrdered = 0, kPlain = 1;  // relations; the third is exclusive or

// The part of a section that items need, in registers.
struct DeltaShape {
  int32_t origin;
  unsigned shift, places, fraction, near, near_raw, relation, low;

  BF16CODECS_DEVICE DeltaShape(const Warp& warp, const Section& section)
      : origin(warp.same(section.origin)),
        shift(warp.same(section.shift)),
        places(warp.same(section.places)),
        fraction(warp.same(section.fraction)),
        near(warp.same(section.near)),
        near_raw(warp.same(section.near_raw)),
        relation(warp.same(section.relation)),
        low(warp.same(section.low)) {}
};

// An item of at most as many bits as T has. Items are modulo 2^bits, magnitudes modulo 2^(bits -
// 1).
template <typename T>
class DeltaItem {
 public:
  BF16CODECS_DEVICE DeltaItem(const DeltaShape& shape, unsigned bits, T base, int scale)
      : shape_(shape), sign_at_(bits - 1), base_(base), scale_(scale) {}

  // The item's index in the section's `class_of`.
  BF16CODECS_DEVICE unsigned place() const {
    const int exponent = static_cast<int>(magnitude(base_) >> (shape_.fraction - 1));
    const int place = (scale_ - 16 * exponent + shape_.origin) >> shape_.shift;
    return static_cast<unsigned>(clamp<int>(place, 0, shape_.places - 1));
  }

  // Returns the item of a coded number and its low bytes.
  BF16CODECS_DEVICE T add(unsigned number, unsigned c, T low) const {
    const unsigned low_bits = 8 * shape_.low;
    if (c < shape_.near) return whole(add_far(whole(T{number} << low_bits | low)));
    const unsigned r = shape_.near_raw;
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
    const T scale = whole(static_cast<T>(scale_ >> 4) << (shape_.fraction - 1));
    return magnitude(base_) < scale ? scale : magnitude(base_);
  }

  BF16CODECS_DEVICE T add_far(T z) const {
    if (shape_.relation == kPlain) return base_ + unzigzag(z);
    if (shape_.relation != kOrdered) return base_ ^ z;
    const T d = unzigzag(z);
    return order(whole(order(base_) + (is_negative(base_) ? T{0} - d : d)));
  }

  const DeltaShape& shape_;
  const unsigned sign_at_;
  const T base_;
  const int scale_;
};

}  // namespace bf16codecs::cuda
