// checksum, split16, merge16, histogram and others against the scalar ones, at all sizes around
// vectors.

#include <algorithm>
#include <cstring>

#include "check.h"
#include "kernels_test.h"

namespace bf16codecs::test {
namespace {

constexpr size_t kMost = size_t{1} << 17;

struct Arenas {
  Arena a{kMost}, b{kMost}, c{kMost};
};

Arenas& arenas() {
  static Arenas all;
  return all;
}

void test_checksum(const Kernels& kernels, size_t stripes, Random& random) {
  const Bytes bytes = random.bytes(128 * stripes);
  ChecksumState start;
  for (unsigned j = 0; j < 16; ++j) start.a[j] = random.next(), start.c[j] = random.next();
  ChecksumState expected = start;
  kScalarKernels.checksum(expected, bytes.data(), stripes);
  for (const Against side : kBothSides) {
    ChecksumState state = start;
    kernels.checksum(state, arenas().a.holding(bytes, side), stripes);
    CHECK(std::equal(state.a, state.a + 16, expected.a));
    CHECK(std::equal(state.c, state.c + 16, expected.c));
  }
}

void test_split_and_merge(const Kernels& kernels, const Bytes& items) {
  const size_t n = items.size() / 2;
  Bytes high(n), low(n);
  kScalarKernels.split16(items.data(), n, high.data(), low.data());
  for (const Against side : kBothSides) {
    uint8_t* const item = arenas().a.holding(items, side);
    uint8_t* const high_at = arenas().b.room(n, side);
    uint8_t* const low_at = arenas().c.room(n, side);
    std::fill_n(high_at, n, uint8_t{0xA5}), std::fill_n(low_at, n, uint8_t{0xA5});
    kernels.split16(item, n, high_at, low_at);
    CHECK(std::equal(high.begin(), high.end(), high_at));
    CHECK(std::equal(low.begin(), low.end(), low_at));
    std::fill_n(item, 2 * n, uint8_t{0xA5});
    kernels.merge16(high_at, low_at, n, item);
    CHECK(std::equal(items.begin(), items.end(), item));
  }
}

void test_histogram(const Kernels& kernels, const Bytes& plane, uint8_t window) {
  uint32_t expected[256], counts[256];
  for (unsigned s = 0; s < 256; ++s) expected[s] = 1000 * s;
  std::copy_n(expected, 256, counts);
  for (const uint8_t s : plane) ++expected[s];
  for (const Against side : kBothSides) {
    uint32_t result[256];
    std::copy_n(counts, 256, result);
    kernels.histogram(arenas().a.holding(plane, side), plane.size(), window, result);
    CHECK(std::equal(result, result + 256, expected));
  }
}

// Symbols of which `outside` in 256 are anywhere, the others in the window.
Bytes windowed(size_t n, uint8_t window, unsigned outside, Random& random) {
  Bytes plane(n);
  for (uint8_t& s : plane) {
    s = random.below(256) < outside ? random.byte()
                                    : static_cast<uint8_t>(window + random.below(kWindowSymbols));
  }
  return plane;
}

void test_histograms(const Kernels& kernels, size_t n, Random& random) {
  const uint8_t window = random.byte();
  test_histogram(kernels, windowed(n, window, 0, random), window);
  test_histogram(kernels, windowed(n, window, 4, random), window);
  test_histogram(kernels, random.bytes(n), window);
  // All alike overflow a narrow counter first: each end of the window, and both sides of it.
  for (const int offset : {-1, 0, 1, 15, 16}) {
    test_histogram(kernels, Bytes(n, static_cast<uint8_t>(window + offset)), window);
  }
}

void test_differing_bits(const Kernels& kernels, size_t n, Random& random) {
  const Bytes a = random.bytes(8 * n), b = random.bytes(8 * n);
  for (const Against side : kBothSides) {
    const uint8_t *x = arenas().a.holding(a, side), *y = arenas().b.holding(b, side);
    CHECK(kernels.differing_bits(x, y, n) == kScalarKernels.differing_bits(x, y, n));
    CHECK(kernels.differing_bits(x, x, n) == 0);
  }
}

// Strings that differ nowhere, in one byte of some words, and everywhere.
void test_differing_words(const Kernels& kernels, size_t n, Random& random) {
  const Bytes a = random.bytes(512 * n), noise = random.bytes(512 * n);
  Bytes some = a;
  for (size_t word = 0; word < 64 * n; ++word) {
    if (random.below(3) == 0) some[8 * word + random.below(8)] ^= 1;
  }
  for (const Bytes& b : {a, some, noise}) {
    for (const Against side : kBothSides) {
      const uint8_t *x = arenas().a.holding(a, side), *y = arenas().b.holding(b, side);
      std::vector<uint64_t> expected(n + 1, 1), found(n + 1, 1);
      kScalarKernels.differing_words(x, y, n, expected.data());
      kernels.differing_words(x, y, n, found.data());
      CHECK(found == expected);
    }
  }
}

void test_columns(const Kernels& kernels, size_t n, Random& random) {
  constexpr int kLimits[] = {127, 511, 4095, 32767};
  const Bytes classes = random.bytes(2 * n);
  Bytes columns(2 * n);
  for (size_t i = 0; i < n; ++i) {
    const int column = static_cast<int>((classes[2 * i] | classes[2 * i + 1] << 8) % 4095) - 2047;
    const auto word = static_cast<int16_t>(column);
    std::memcpy(columns.data() + 2 * i, &word, 2);
  }
  for (const int most : kLimits) {
    for (const int row : {0, static_cast<int>(random.below(static_cast<unsigned>(most))), most}) {
      for (unsigned step = 0; step < 4; ++step) {
        for (const Against side : kBothSides) {
          const auto* from = reinterpret_cast<const int16_t*>(arenas().a.holding(columns, side));
          auto* const expected = reinterpret_cast<uint16_t*>(arenas().b.room(2 * n, side));
          auto* const scales = reinterpret_cast<uint16_t*>(arenas().c.room(2 * n, side));
          kScalarKernels.add_columns(from, step, row, most, n, expected);
          kernels.add_columns(from, step, row, most, n, scales);
          CHECK(std::equal(scales, scales + n, expected));
        }
      }
    }
  }
}

}  // namespace

void test_planes(const Kernels& kernels) {
  Random random(1);
  for (size_t stripes = 0; stripes < 20; ++stripes) test_checksum(kernels, stripes, random);

  for (size_t n = 0; n < 200; ++n) test_split_and_merge(kernels, random.bytes(2 * n));
  Bytes all(kMost);  // every item
  for (size_t i = 0; i < kMost; ++i) all[i] = static_cast<uint8_t>(i % 2 == 0 ? i / 2 : i / 512);
  test_split_and_merge(kernels, all);

  for (size_t n = 0; n < 100; ++n) test_columns(kernels, n, random);
  for (size_t n = 0; n < 40; ++n) test_differing_bits(kernels, n, random);
  for (const size_t n : {123u, 124u, 129u, 247u, 248u, 250u, 1029u}) {
    test_differing_bits(kernels, n, random);
  }

  for (size_t n = 0; n < 9; ++n) test_differing_words(kernels, n, random);

  for (size_t n = 0; n < 300; ++n) test_histograms(kernels, n, random);
  // Where counters of 4 and of 8 bits are full, for vectors of 16, 32 and 64 bytes.
  for (const size_t full : {15u * 16, 255u * 16, 255u * 32, 255u * 64, 2u * 255 * 64}) {
    for (const int more : {-17, -1, 0, 1, 17, 70}) {
      test_histograms(kernels, full + static_cast<size_t>(more), random);
    }
  }
}

}  // namespace bf16codecs::test
