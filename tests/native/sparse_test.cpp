// The kernels of sparse planes against the scalar ones, at all sizes around vectors, with any share
// of zeros, with sign bits from any bit on.

#include "check.h"
#include "kernels_test.h"

namespace bf16codecs::test {
namespace {

constexpr size_t kMost = size_t{1} << 14;

struct Arenas {
  Arena first{kMost}, plane{kMost}, symbols{kMost}, signs{kMost};
};

Arenas& arenas() {
  static Arenas all;
  return all;
}

// Symbols of plane 0 of which `share` in 16 are `zero`.
Bytes first_plane(size_t n, uint8_t zero, unsigned share, Random& random) {
  Bytes first(n);
  for (uint8_t& symbol : first) {
    symbol = random.below(16) < share ? zero : static_cast<uint8_t>(zero + 1 + random.below(255));
  }
  return first;
}

struct Expanded {
  Bytes plane;
  size_t symbols, sign;
};

Expanded expand(const Kernels& kernels, const Bytes& first, const Bytes& symbols,
                const Bytes& signs, SparseDecoder decoder, Against side) {
  const size_t n = first.size();
  const Output plane(arenas().plane, n, 0, side);
  const uint8_t* const begin = arenas().symbols.holding(symbols, side);
  decoder.symbols = begin;
  decoder.signs = arenas().signs.holding(signs, side);
  kernels.sparse->expand(decoder, arenas().first.holding(first, side), n, plane.data());
  return {plane.bytes(), static_cast<size_t>(decoder.symbols - begin), decoder.sign};
}

void test_expand(const Kernels& kernels, const Bytes& first, uint8_t zero, Random& random) {
  const size_t n = first.size();
  const Bytes symbols = random.bytes(n + kSparseMargin);
  for (const bool has_signs : {false, true}) {
    for (const size_t sign : {0u, 1u, 7u, 13u}) {
      const Bytes signs = random.bytes((n + sign) / 8 + kSparseMargin);
      const auto value = static_cast<uint8_t>(random.byte() & ~(has_signs ? 1 : 0));
      const SparseDecoder decoder{zero, value, has_signs, nullptr, nullptr, sign};
      for (const Against side : kBothSides) {
        const Expanded expected = expand(kScalarKernels, first, symbols, signs, decoder, side);
        const Expanded found = expand(kernels, first, symbols, signs, decoder, side);
        CHECK(found.plane == expected.plane);
        CHECK(found.symbols == expected.symbols);
        CHECK(found.sign == expected.sign);
      }
    }
  }
}

struct Packed {
  Bytes symbols, signs;
  size_t sign, others;
};

Packed pack(const Kernels& kernels, const Bytes& first, const Bytes& plane, SparseEncoder encoder,
            Against side) {
  const size_t n = first.size();
  const Output symbols(arenas().symbols, n, kSparseMargin, side);
  const size_t sign_bytes = (n + encoder.sign + 7) / 8;
  const Output signs(arenas().signs, sign_bytes, kSparseMargin, side);
  std::fill_n(signs.data(), sign_bytes + kSparseMargin, uint8_t{0});
  signs.data()[0] = static_cast<uint8_t>((1u << encoder.sign) - 1);
  encoder.symbols = symbols.data();
  encoder.signs = signs.data();
  const size_t others = kernels.sparse->pack(encoder, arenas().first.holding(first, side),
                                             arenas().plane.holding(plane, side), n);
  Bytes packed = symbols.bytes();
  packed.resize(static_cast<size_t>(encoder.symbols - symbols.data()));
  return {packed, signs.bytes(), encoder.sign, others};
}

void test_pack(const Kernels& kernels, const Bytes& first, uint8_t zero, Random& random) {
  const auto value = static_cast<uint8_t>(random.byte() & 254);
  Bytes plane = random.bytes(first.size());
  const unsigned most_others = random.below(40);
  for (size_t i = 0; i < plane.size(); ++i) {
    if (first[i] == zero && random.below(40) >= most_others) {
      plane[i] = static_cast<uint8_t>(value + random.below(2));
    }
  }
  for (const size_t sign : {0u, 1u, 5u, 7u}) {
    const SparseEncoder encoder{zero, value, nullptr, nullptr, sign};
    for (const Against side : kBothSides) {
      const Packed expected = pack(kScalarKernels, first, plane, encoder, side);
      const Packed found = pack(kernels, first, plane, encoder, side);
      CHECK(found.symbols == expected.symbols);
      CHECK(found.signs == expected.signs);
      CHECK(found.sign == expected.sign);
      CHECK(found.others == expected.others);
    }
  }
}

}  // namespace

void test_sparse(const Kernels& kernels) {
  Random random(7);
  const auto test = [&](size_t n, unsigned share) {
    const uint8_t zero = random.below(2) == 0 ? uint8_t{0} : random.byte();
    const Bytes first = first_plane(n, zero, share, random);
    test_expand(kernels, first, zero, random);
    test_pack(kernels, first, zero, random);
  };
  for (size_t n = 0; n < 200; ++n) {
    for (const unsigned share : {0u, 8u, 16u}) test(n, share);
  }
  for (unsigned share = 0; share <= 16; ++share) test(4096 + random.below(100), share);
}

}  // namespace bf16codecs::test
