// load_keys16, load_distances16 and the kernels of magnitudes against the scalar ones: for the keys
// of all dtypes, at exponents and weights out to their limits, and where sums of 32 bits are full.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>

#include "check.h"
#include "kernels_test.h"

namespace bf16codecs::test {
namespace {

constexpr size_t kMost = size_t{1} << 18;

struct Arenas {
  Arena keys{kMost}, weights{2 * kMost}, sums{2 * kMost};
};

Arenas& arenas() {
  static Arenas all;
  return all;
}

using Keys = std::vector<uint16_t>;
using Weights = std::vector<float>;

// A key's bits, and those of its fraction and sign.
struct KeyLayout {
  unsigned bits, fraction;

  int exponents() const { return 1 << (bits - fraction); }
};
constexpr KeyLayout kLayouts[] = {{16, 8}, {16, 11}, {16, 5}, {8, 4}, {8, 3}};

// As tiles/magnitudes.cpp makes them: 64 octaves around an exponent, 1 at 16 below it.
MagnitudeShape shape_of(const KeyLayout& layout, int exponent) {
  const int origin = (exponent - 32) * (1 << layout.fraction);
  const int last = origin + (64 << layout.fraction) - 1;
  const unsigned shift = 23 - layout.fraction;
  const uint32_t first_bits = std::bit_cast<uint32_t>(1.0f / 65536);
  return {static_cast<uint16_t>(std::max(origin, 0)), static_cast<uint16_t>(std::min(last, 65535)),
          shift, first_bits - (static_cast<uint32_t>(origin) << shift)};
}

// What the shape is a short form of.
uint32_t magnitude(const KeyLayout& layout, int exponent, uint16_t key, float weight) {
  const int64_t relative =
      std::clamp<int64_t>(key - (static_cast<int64_t>(exponent) - 32) * (1 << layout.fraction), 0,
                          (64 << layout.fraction) - 1);
  const auto bits = static_cast<uint32_t>(relative << (23 - layout.fraction)) +
                    std::bit_cast<uint32_t>(1.0f / 65536);
  const float x = std::bit_cast<float>(bits) * weight;
  return static_cast<uint32_t>(std::min(x, kMostMagnitude));
}

enum class KeyKind { any, near, largest, zeros };
constexpr KeyKind kKeyKinds[] = {KeyKind::any, KeyKind::near, KeyKind::largest, KeyKind::zeros};

Keys random_keys(size_t n, const KeyLayout& layout, int exponent, KeyKind kind, Random& random) {
  const int most = (1 << layout.bits) - 1;
  const unsigned octave = 1u << layout.fraction;
  Keys keys(n);
  for (uint16_t& key : keys) {
    int k = static_cast<int>(random.below(static_cast<unsigned>(most) + 1));
    if (kind == KeyKind::near) {
      k = (exponent - 12) * static_cast<int>(octave) + static_cast<int>(random.below(24 * octave));
    }
    if (kind == KeyKind::largest) k = most;
    if (kind == KeyKind::zeros) k = static_cast<int>(random.below(3));
    key = static_cast<uint16_t>(std::clamp(k, 0, most));
  }
  return keys;
}

// 2^-32 to 2^32, half of them within 2^-6 and 2^6.
Weights random_weights(size_t n, Random& random) {
  Weights weights(n);
  for (float& w : weights) {
    const float fraction = 1.0f + static_cast<float>(random.below(1u << 23)) / (1u << 23);
    const int most = random.below(2) != 0 ? 32 : 6;
    const int octave = static_cast<int>(random.below(2 * static_cast<unsigned>(most) + 1)) - most;
    w = octave == most ? std::ldexp(1.0f, most) : std::ldexp(fraction, octave);
  }
  return weights;
}

bool operator==(const MagnitudeSum& a, const MagnitudeSum& b) {
  return a.sum == b.sum && a.nonzero == b.nonzero;
}

void test_sum(const MagnitudeKernels& kernels, const MagnitudeShape& shape, const Keys& keys,
              const Weights& weights) {
  const MagnitudeKernels& scalar = kScalarMagnitudeKernels;
  const size_t n = keys.size();
  for (const Against side : kBothSides) {
    const uint16_t* const k = arenas().keys.holding(keys, side);
    const float* const w = arenas().weights.holding(weights, side);
    CHECK(kernels.sum(shape, k, nullptr, n) == scalar.sum(shape, k, nullptr, n));
    CHECK(kernels.sum(shape, k, w, n) == scalar.sum(shape, k, w, n));
  }
}

void test_add(const MagnitudeKernels& kernels, const MagnitudeShape& shape, const Keys& keys,
              float weight, Random& random) {
  const size_t n = keys.size();
  std::vector<uint32_t> start(n);
  for (uint32_t& sum : start) sum = static_cast<uint32_t>(random.next());
  std::vector<uint32_t> expected = start;
  kScalarMagnitudeKernels.add(shape, keys.data(), weight, n, expected.data());
  for (const Against side : kBothSides) {
    uint32_t* const sums = arenas().sums.holding(start, side);
    kernels.add(shape, arenas().keys.holding(keys, side), weight, n, sums);
    CHECK(std::equal(expected.begin(), expected.end(), sums));
  }
}

void test_magnitudes(const MagnitudeKernels& kernels, size_t n, Random& random) {
  const KeyLayout& layout = kLayouts[random.below(std::size(kLayouts))];
  const int most = layout.exponents() - 1;
  const auto any = static_cast<int>(random.below(static_cast<uint64_t>(most)));
  for (const int exponent : {0, any, most}) {
    const MagnitudeShape shape = shape_of(layout, exponent);
    for (const KeyKind kind : kKeyKinds) {
      const Keys keys = random_keys(n, layout, exponent, kind, random);
      const Weights weights = random_weights(n + 1, random);
      test_sum(kernels, shape, keys, {weights.begin(), weights.end() - 1});
      test_add(kernels, shape, keys, weights[n], random);
    }
  }
}

// The scalar kernels themselves, one key at a time.
void test_every_key(const MagnitudeKernels& kernels, Random& random) {
  for (const KeyLayout& layout : kLayouts) {
    for (int exponent = 0; exponent < layout.exponents(); exponent += 1 + layout.exponents() / 8) {
      const MagnitudeShape shape = shape_of(layout, exponent);
      for (uint32_t k = 0; k < 1u << layout.bits; k += 1 + random.below(16)) {
        const auto key = static_cast<uint16_t>(k);
        const float weight = random_weights(1, random)[0];
        uint32_t sum = 0;
        kernels.add(shape, &key, weight, 1, &sum);
        CHECK(sum == magnitude(layout, exponent, key, weight));
        const MagnitudeSum one = kernels.sum(shape, &key, nullptr, 1);
        CHECK(one.sum == magnitude(layout, exponent, key, 1) && one.nonzero == (key > 1));
      }
    }
  }
}

void test_load_keys(const Kernels& kernels, const Bytes& items) {
  const size_t n = items.size() / 2;
  Keys expected(n);
  kScalarKernels.load_keys16(items.data(), n, expected.data());
  for (const Against side : kBothSides) {
    uint16_t* const keys = arenas().sums.holding(Keys(n, 0xA5A5), side);
    kernels.load_keys16(arenas().keys.holding(items, side), n, keys);
    CHECK(std::equal(expected.begin(), expected.end(), keys));
  }
}

void test_load_distances(const Kernels& kernels, const Bytes& base, const Bytes& items) {
  const size_t n = items.size() / 2;
  Keys expected(n);
  kScalarKernels.load_distances16(base.data(), items.data(), n, expected.data());
  for (const Against side : kBothSides) {
    uint16_t* const keys = arenas().sums.holding(Keys(n, 0xA5A5), side);
    kernels.load_distances16(base.data(), arenas().keys.holding(items, side), n, keys);
    CHECK(std::equal(expected.begin(), expected.end(), keys));
    kernels.load_distances16(arenas().keys.holding(items, side), base.data(), n, keys);
    CHECK(std::equal(expected.begin(), expected.end(), keys));
#if defined(__x86_64__)
    // Programs may have subnormal numbers flushed to zero.
    const unsigned settings = _mm_getcsr();
    _mm_setcsr(settings | 0x8040);
    kernels.load_distances16(base.data(), arenas().keys.holding(items, side), n, keys);
    _mm_setcsr(settings);
    CHECK(std::equal(expected.begin(), expected.end(), keys));
#endif
  }
}

}  // namespace

void test_magnitudes(const Kernels& kernels) {
  Random random(6);
  for (size_t n = 0; n <= 200; ++n) {
    test_load_keys(kernels, random.bytes(2 * n));
    test_load_distances(kernels, random.bytes(2 * n), random.bytes(2 * n));
    test_magnitudes(*kernels.magnitudes, n, random);
  }
  // Where sums of 32 bits are full, for vectors of 8, 16 and 32 keys.
  for (const size_t full : {255u * 8, 255u * 16, 255u * 32, 3 * 255u * 32, 100000u}) {
    for (const int more : {-9, -1, 0, 1, 9, 33}) {
      test_magnitudes(*kernels.magnitudes, full + static_cast<size_t>(more), random);
    }
  }
  test_load_keys(kernels, random.bytes(kMost));
  test_every_key(*kernels.magnitudes, random);
}

}  // namespace bf16codecs::test
