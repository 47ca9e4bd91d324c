// huffman_pack, which has no scalar counterpart, against codes that are put bit by bit.

#include <algorithm>

#include "check.h"
#include "kernels_test.h"

namespace bf16codecs::test {
namespace {

struct Packed {
  uint64_t bits;  // of a last, unfinished byte
  unsigned count;
  Bytes out;
  size_t used;
};

Packed pack_plainly(const uint16_t entries[kPackEntries], const Bytes& symbols, size_t room,
                    uint64_t bits, unsigned count) {
  Packed result{bits, count, {}, 0};
  while (symbols.size() - result.used >= kPackSymbols && room - result.out.size() >= kPackRoom) {
    for (unsigned i = 0; i < kPackSymbols; ++i) {
      const unsigned entry = entries[symbols[result.used++] % kPackEntries];
      result.bits |= uint64_t{entry & ((1u << kLongestCode) - 1)} << result.count;
      result.count += entry >> kPackLengthAt;
      for (; result.count >= 8; result.count -= 8, result.bits >>= 8) {
        result.out.push_back(static_cast<uint8_t>(result.bits));
      }
    }
  }
  return result;
}

void test_pack(const Kernels& kernels, unsigned shortest, unsigned longest, size_t n, size_t room,
               Random& random) {
  static Arena symbols_arena(size_t{1} << 12), out_arena(size_t{1} << 13);
  alignas(64) uint16_t entries[kPackEntries];
  for (uint16_t& entry : entries) {
    const unsigned length = shortest + random.below(longest - shortest + 1);
    entry = static_cast<uint16_t>(random.below(1u << length) | length << kPackLengthAt);
  }
  const Bytes symbols = random.bytes(n);
  const unsigned count = random.below(8);
  const uint64_t bits = random.below(1u << count);
  const Packed expected = pack_plainly(entries, symbols, room, bits, count);
  for (const Against side : kBothSides) {
    uint8_t* const out = out_arena.room(room, side);
    BitSink sink{bits, count, out, out + room};
    const size_t used =
        kernels.huffman_pack(sink, entries, symbols_arena.holding(symbols, side), n);
    CHECK(used == expected.used && sink.count == expected.count);
    CHECK((sink.bits & ((uint64_t{1} << sink.count) - 1)) == expected.bits);
    CHECK(sink.end == out + room && Bytes(out, sink.out) == expected.out);
  }
}

}  // namespace

void test_huffman_pack(const Kernels& kernels) {
  if (kernels.huffman_pack == nullptr) return;
  Random random(3);
  const size_t enough = 4 * kPackRoom + 300;
  for (size_t n = 0; n < 300; ++n) test_pack(kernels, 1, kLongestCode, n, enough, random);
  for (size_t room = 0; room < 300; ++room) {
    test_pack(kernels, 1, kLongestCode, 300, room, random);
  }
  for (unsigned length = 1; length <= kLongestCode; ++length) {
    test_pack(kernels, length, length, 256, enough, random);
    test_pack(kernels, 1, length, 256, enough, random);
  }
}

}  // namespace bf16codecs::test
