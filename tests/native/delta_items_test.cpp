// The kernels of the difference mode that take differences and put them together, against the
// scalar ones: for any shape, base and scales, where numbers are full, and in place. None has more
// memory than kernels/delta.h says.

#include <algorithm>

#include "check.h"
#include "digest.h"
#include "kernels_test.h"

namespace bf16codecs::test {
namespace {

using Words = std::vector<uint16_t>;

constexpr size_t kMost = size_t{1} << 14;

struct Memory {
  Arena base{kMost}, items{kMost}, scales{kMost}, classes{kMost}, numbers{kMost};
};

Memory& memory() {
  static Memory all;
  return all;
}

// A block's items, and those of its base.
struct Block {
  DeltaShape shape;
  Bytes base, items;
  Words scales;
  Bytes classes;
  Words numbers;

  size_t size() const { return scales.size(); }
};

Bytes classify(const DeltaKernels& kernels, const Block& block, Against side) {
  const Output classes(memory().classes, block.size(), 0, side);
  kernels.classify16(block.shape, memory().base.holding(block.base, side),
                     memory().scales.holding(block.scales, side), block.size(), classes.data());
  return classes.bytes();
}

Words subtract(const DeltaKernels& kernels, const Block& block, Against side) {
  const Output numbers(memory().numbers, 2 * block.size(), 0, side);
  kernels.subtract16(
      block.shape, memory().base.holding(block.base, side),
      memory().items.holding(block.items, side), memory().scales.holding(block.scales, side),
      memory().classes.holding(block.classes, side), block.size(), numbers.of<uint16_t>());
  return numbers.values<uint16_t>();
}

Bytes add(const DeltaKernels& kernels, const Block& block, bool in_place, Against side) {
  const Output out(memory().items, 2 * block.size(), 0, side);
  const uint8_t* base = memory().base.holding(block.base, side);
  if (in_place)
    base = std::copy(block.base.begin(), block.base.end(), out.data()) - block.base.size();
  kernels.add16(block.shape, base, memory().numbers.holding(block.numbers, side),
                memory().scales.holding(block.scales, side),
                memory().classes.holding(block.classes, side), block.size(), out.data());
  return out.bytes();
}

Bytes add_alike(const DeltaKernels& kernels, const Block& block) {
  const Bytes expected = add(kScalarDeltaKernels, block, false, Against::back);
  for (const Against side : kBothSides) {
    for (const bool in_place : {false, true}) {
      CHECK(add(kernels, block, in_place, side) == expected);
    }
  }
  return expected;
}

DeltaShape random_shape(Random& random) {
  DeltaShape shape{};
  shape.origin = static_cast<int>(random.below(32767)) - 16383;
  if (random.below(2) != 0) shape.origin = static_cast<int>(random.below(512));
  shape.shift = random.below(5);
  shape.places = 1 + random.below(kDeltaPlaces);
  shape.fraction = random.below(2) == 0 ? 8 : 11;
  unsigned c = 0;
  for (unsigned place = 0; place < shape.places; ++place) {
    shape.class_of[place] = static_cast<uint8_t>(c);
    if (random.below(3) == 0 && c + 1 < kDeltaClasses) ++c;
  }
  shape.near = random.below(2) == 0 ? kDeltaClasses : random.below(c + 2);
  shape.near_raw = random.below(2) == 0 ? std::min(shape.fraction - 1, kMaxDeltaRaw)
                                        : random.below(kMaxDeltaRaw + 1);
  return shape;
}

enum class Content { close, noise, edges };
constexpr Content kContents[] = {Content::close, Content::noise, Content::edges};

void put(Bytes& bytes, size_t i, unsigned item) {
  bytes[2 * i] = static_cast<uint8_t>(item);
  bytes[2 * i + 1] = static_cast<uint8_t>(item >> 8);
}

Block random_block(size_t n, Content content, Random& random) {
  Block block{random_shape(random), random.bytes(2 * n), random.bytes(2 * n), Words(n), {}, {}};
  const unsigned edges[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
  const unsigned octave = 1u << (block.shape.fraction - 1);
  for (size_t i = 0; i < n; ++i) {
    block.scales[i] = static_cast<uint16_t>(random.next());
    const auto b = static_cast<unsigned>(random.below(65536));
    if (content == Content::close) {
      put(block.base, i, b);
      put(block.items, i, b + random.below(64) - 32 + (random.below(16) == 0) * 0x8000u);
      const unsigned exponent = (b & 0x7FFF) / octave;
      block.scales[i] = static_cast<uint16_t>(16 * exponent + random.below(200));
    } else if (content == Content::edges) {
      put(block.base, i, edges[random.below(std::size(edges))]);
      put(block.items, i, edges[random.below(std::size(edges))]);
    }
  }
  return block;
}

// Items come back where the numbers are not full, in which case they are escapes.
void test_block(const DeltaKernels& kernels, Block& block, Digest& digest, Random& random) {
  block.classes = classify(kScalarDeltaKernels, block, Against::back);
  for (const Against side : kBothSides) CHECK(classify(kernels, block, side) == block.classes);
  digest.update(block.classes);
  if (random.below(8) == 0) {  // classes that the base does not have
    for (uint8_t& c : block.classes) c = static_cast<uint8_t>(random.below(kDeltaClasses));
  }
  block.numbers = subtract(kScalarDeltaKernels, block, Against::back);
  for (const Against side : kBothSides) CHECK(subtract(kernels, block, side) == block.numbers);
  digest.update(block.numbers);
  const Bytes items = add_alike(kernels, block);
  for (size_t i = 0; i < block.size(); ++i) {
    if (block.numbers[i] == 0xFFFF) continue;
    CHECK(items[2 * i] == block.items[2 * i] && items[2 * i + 1] == block.items[2 * i + 1]);
  }
  for (uint16_t& number : block.numbers) number = static_cast<uint16_t>(random.next());
  digest.update(add_alike(kernels, block));
}

}  // namespace

uint64_t test_delta_items(const Kernels& kernels) {
  Random random(8);
  Digest digest;
  for (size_t n = 0; n <= 200; ++n) {
    for (const Content content : kContents) {
      for (unsigned i = 0; i < 4; ++i) {
        Block block = random_block(n, content, random);
        test_block(*kernels.delta, block, digest, random);
      }
    }
  }
  for (const Content content : kContents) {
    for (unsigned i = 0; i < 20; ++i) {
      Block block = random_block(4000 + random.below(64), content, random);
      test_block(*kernels.delta, block, digest, random);
    }
  }
  return digest.value();
}

}  // namespace bf16codecs::test
