// Classes and coded numbers of items of any width and relation (docs/format_differences.md,
// "Numbers"), and the choice of kernels where there are some. Arithmetic is on unsigned numbers of
// the item's width, modulo 2^W. Compilers extend the narrow ones to int, so that results are cast
// back.

#include "delta/numbers.h"

#include <algorithm>

#include "format/little_endian.h"
#include "kernels/kernels.h"

namespace bf16codecs::delta {
namespace {

// Items of type T in one of the relations. The kernels for 16 bits have the same formulas.
template <typename T>
class Items {
 public:
  Items(const Section& section)
      : shape_(section.shape), low_bits_(8 * section.low), relation_(section.relation) {}

  int place(T base, uint16_t scale) const {
    const int exponent = static_cast<int>(magnitude(base) >> (shape_.fraction - 1));
    const int place = (scale - 16 * exponent + shape_.origin) >> shape_.shift;
    return std::clamp(place, 0, static_cast<int>(shape_.places) - 1);
  }

  // Returns the coded number, 65535 if it is larger; `low` becomes the low bytes.
  uint16_t subtract(T base, T item, uint16_t scale, unsigned c, T& low) const {
    const bool is_near = c >= shape_.near;
    const T z = is_near ? near_number(base, item, scale) : far_number(base, item);
    low = static_cast<T>(z & low_mask());
    uint64_t number = uint64_t{z} >> low_bits_;
    if (is_near) {
      const unsigned r = shape_.near_raw;
      const uint64_t sign = (base ^ item) >> kSignAt & 1;
      number = std::min<uint64_t>(number >> r, 0xFFFF) << (r + 1) | sign << r |
               (number & ((1u << r) - 1));
    }
    return static_cast<uint16_t>(std::min<uint64_t>(number, 0xFFFF));
  }

  T add(T base, unsigned number, uint16_t scale, unsigned c, T low) const {
    if (c < shape_.near) return add_far(base, static_cast<T>(T(number) << low_bits_ | low));
    const unsigned r = shape_.near_raw;
    const unsigned y = number >> (r + 1) << r | (number & ((1u << r) - 1));
    const T sign = static_cast<T>(base >> kSignAt ^ (number >> r & 1));
    const T x =
        static_cast<T>(anchor(base, scale) + unzigzag(static_cast<T>(T(y) << low_bits_ | low)));
    return static_cast<T>(magnitude(x) | sign << kSignAt);
  }

 private:
  static constexpr unsigned kSignAt = 8 * sizeof(T) - 1;

  static T magnitude(T item) { return static_cast<T>(item & static_cast<T>(~(T{1} << kSignAt))); }
  static T sign_mask(T item) { return static_cast<T>(T{0} - static_cast<T>(item >> kSignAt)); }
  static T order(T item) { return static_cast<T>(item ^ magnitude(sign_mask(item))); }
  static T zigzag(T d) { return static_cast<T>(static_cast<T>(d << 1) ^ sign_mask(d)); }
  static T unzigzag(T z) {
    return static_cast<T>(static_cast<T>(z >> 1) ^ static_cast<T>(T{0} - static_cast<T>(z & 1)));
  }
  T low_mask() const { return static_cast<T>((uint64_t{1} << low_bits_) - 1); }

  T anchor(T base, uint16_t scale) const {
    return std::max(magnitude(base),
                    static_cast<T>(static_cast<T>(scale >> 4) << (shape_.fraction - 1)));
  }

  T near_number(T base, T item, uint16_t scale) const {
    return zigzag(static_cast<T>(magnitude(item) - anchor(base, scale)));
  }

  T far_number(T base, T item) const {
    if (relation_ == Relation::exclusive_or) return static_cast<T>(base ^ item);
    if (relation_ == Relation::plain) return zigzag(static_cast<T>(item - base));
    const T negative = sign_mask(base);
    const T d = static_cast<T>(order(item) - order(base));
    return zigzag(static_cast<T>((d ^ negative) - negative));
  }

  T add_far(T base, T z) const {
    if (relation_ == Relation::exclusive_or) return static_cast<T>(base ^ z);
    if (relation_ == Relation::plain) return static_cast<T>(base + unzigzag(z));
    const T negative = sign_mask(base);
    return order(static_cast<T>(order(base) + static_cast<T>((unzigzag(z) ^ negative) - negative)));
  }

  const DeltaShape& shape_;
  const unsigned low_bits_;
  const Relation relation_;
};

// Calls function with Items<T>, where T is the unsigned type of `width` bytes.
template <typename Function>
void with_items(size_t width, const Section& section, Function function) {
  switch (width) {
    case 1:
      return function.template operator()<uint8_t>(Items<uint8_t>(section));
    case 2:
      return function.template operator()<uint16_t>(Items<uint16_t>(section));
    case 4:
      return function.template operator()<uint32_t>(Items<uint32_t>(section));
    default:
      return function.template operator()<uint64_t>(Items<uint64_t>(section));
  }
}

// Adds 16-bit numbers that have no low bytes, of classes that are not near. Without kernels: items
// pass through arrays of a fixed size, whose loops every compiler makes vectors of (4.5 times as
// fast as item by item, on AVX2).
template <typename Add>
void add_far16(const uint8_t* base, const uint16_t* numbers, size_t n, uint8_t* items, Add add) {
  constexpr size_t kItems = 256;
  for (size_t i = 0; i < n; i += kItems) {
    const size_t count = std::min(kItems, n - i);
    uint16_t values[kItems];
    for (size_t k = 0; k < count; ++k) values[k] = load_le<uint16_t>(base + 2 * (i + k));
    for (size_t k = 0; k < count; ++k) values[k] = add(values[k], numbers[i + k]);
    for (size_t k = 0; k < count; ++k) store_le(items + 2 * (i + k), values[k]);
  }
}

}  // namespace

void Numbers::classify(const uint8_t* base, const uint16_t* scales, size_t n,
                       uint8_t* classes) const {
  if (section_.shape.places == 1) return std::fill_n(classes, n, uint8_t{0}), void();
  if (layout_.planes() == 2) {
    return kernels().delta->classify16(section_.shape, base, scales, n, classes);
  }
  with_items(layout_.planes(), section_, [&]<typename T>(const Items<T>& of) {
    for (size_t i = 0; i < n; ++i) {
      classes[i] = section_.shape.class_of[of.place(load_le<T>(base + sizeof(T) * i), scales[i])];
    }
  });
}

void Numbers::subtract(const uint8_t* base, const uint8_t* items, const uint16_t* scales,
                       const uint8_t* classes, size_t n, uint16_t* numbers,
                       uint8_t* const low[]) const {
  if (is_usual16()) {
    return kernels().delta->subtract16(section_.shape, base, items, scales, classes, n, numbers);
  }
  with_items(layout_.planes(), section_, [&]<typename T>(const Items<T>& of) {
    for (size_t i = 0; i < n; ++i) {
      T bytes;
      numbers[i] = of.subtract(load_le<T>(base + sizeof(T) * i), load_le<T>(items + sizeof(T) * i),
                               scales[i], classes[i], bytes);
      for (unsigned k = section_.low; k-- != 0; bytes = static_cast<T>(uint64_t{bytes} >> 8)) {
        low[k][i] = static_cast<uint8_t>(bytes);
      }
    }
  });
}

void Numbers::add(const uint8_t* base, const uint16_t* numbers, const uint16_t* scales,
                  const uint8_t* classes, const uint8_t* const low[], size_t n,
                  uint8_t* items) const {
  if (is_usual16()) {
    return kernels().delta->add16(section_.shape, base, numbers, scales, classes, n, items);
  }
  const bool is_far = section_.shape.near >= section_.classes.size();
  if (layout_.planes() == 2 && section_.low == 0 && is_far) {
    if (section_.relation == Relation::plain) {
      return add_far16(base, numbers, n, items, [](uint16_t value, uint16_t z) {
        return static_cast<uint16_t>(value + ((z >> 1) ^ (0u - (z & 1u))));
      });
    }
    return add_far16(base, numbers, n, items,
                     [](uint16_t value, uint16_t z) { return static_cast<uint16_t>(value ^ z); });
  }
  with_items(layout_.planes(), section_, [&]<typename T>(const Items<T>& of) {
    for (size_t i = 0; i < n; ++i) {
      T bytes = 0;
      for (unsigned k = 0; k < section_.low; ++k) {
        bytes = static_cast<T>(uint64_t{bytes} << 8 | low[k][i]);
      }
      const T item =
          of.add(load_le<T>(base + sizeof(T) * i), numbers[i], scales[i], classes[i], bytes);
      store_le(items + sizeof(T) * i, item);
    }
  });
}

}  // namespace bf16codecs::delta
