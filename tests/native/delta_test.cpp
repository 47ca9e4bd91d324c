// The coding kernels of the difference mode against the scalar ones: on what encoders write, on
// noise, on states at the edges of the divisions, with entries that are absent and any number of
// escapes. None has more memory than kernels/delta.h says.

#include <algorithm>
#include <cstring>

#include "check.h"
#include "delta_models.h"
#include "digest.h"
#include "kernels_test.h"
#include "states.h"

namespace bf16codecs::test {
namespace {

using Words = std::vector<uint16_t>;
using Masks = std::vector<uint32_t>;

constexpr size_t kMost = size_t{1} << 16;

struct Memory {
  Arena words{kMost}, classes{kMost}, numbers{kMost}, escapes{kMost};
};

Memory& memory() {
  static Memory all;
  return all;
}

// What is coded: steps of 32 items, with the lanes' states before it.
struct Items {
  unsigned groups;
  States states;
  Bytes classes;
  Words numbers;

  size_t steps() const { return classes.size() / kDeltaStep; }
};

struct Encoded {
  Bytes words;
  States states;
  Masks escapes;
  bool operator==(const Encoded&) const = default;
};

Encoded encode(const DeltaKernels& kernels, const DeltaModel& model, const Items& items,
               Against side) {
  const size_t steps = items.steps(), room = kEncodeMargin + 64 * steps;
  uint8_t* const end = memory().words.room(room, side) + room;
  DeltaEncoder e{items.groups, end, {}};
  std::copy_n(items.states.x, kMaxLanes, e.x);
  const Output escapes(memory().escapes, sizeof(uint32_t) * steps, 0, side);
  kernels.encode(e, model.tables(kernels), memory().classes.holding(items.classes, side),
                 memory().numbers.holding(items.numbers, side), steps, escapes.of<uint32_t>());
  Encoded result{{e.words, end}, {}, escapes.values<uint32_t>()};
  std::copy_n(e.x, kMaxLanes, result.states.x);
  return result;
}

Encoded encode_alike(const DeltaKernels& kernels, const DeltaModel& model, const Items& items) {
  const Encoded expected = encode(kScalarDeltaKernels, model, items, Against::back);
  for (const Against side : kBothSides) CHECK(encode(kernels, model, items, side) == expected);
  return expected;
}

struct Decoded {
  size_t words;
  States states;
  Words numbers;
  Masks escapes;
  bool operator==(const Decoded&) const = default;
};

// Of `items`, only the groups and the classes count.
Decoded decode(const DeltaKernels& kernels, const DeltaModel& model, const Items& items,
               const Encoded& source, Against side) {
  const size_t steps = items.steps();
  Bytes words = source.words;
  words.resize(64 * steps, 0x5A);
  const uint8_t* const begin = memory().words.holding(words, side);
  DeltaDecoder d{items.groups, begin, {}};
  std::copy_n(source.states.x, kMaxLanes, d.x);
  const Output numbers(memory().numbers, sizeof(uint16_t) * kDeltaStep * steps, 0, side);
  const Output escapes(memory().escapes, sizeof(uint32_t) * steps, 0, side);
  kernels.decode(d, model.tables(kernels), memory().classes.holding(items.classes, side), steps,
                 numbers.of<uint16_t>(), escapes.of<uint32_t>());
  Decoded result{static_cast<size_t>(d.words - begin),
                 {},
                 numbers.values<uint16_t>(),
                 escapes.values<uint32_t>()};
  std::copy_n(d.x, kMaxLanes, result.states.x);
  return result;
}

Decoded decode_alike(const DeltaKernels& kernels, const DeltaModel& model, const Items& items,
                     const Encoded& source) {
  const Decoded expected = decode(kScalarDeltaKernels, model, items, source, Against::back);
  for (const Against side : kBothSides) {
    CHECK(decode(kernels, model, items, source, side) == expected);
  }
  return expected;
}

enum class Content { likely, any, noise };
constexpr Content kContents[] = {Content::likely, Content::any, Content::noise};

Items random_items(const DeltaModel& model, unsigned groups, size_t steps, Content content,
                   Random& random) {
  Items items{groups, {}, Bytes(kDeltaStep * steps), Words(kDeltaStep * steps)};
  const unsigned only = random.below(2 * model.classes());  // the class of all, or any
  for (size_t i = 0; i < items.classes.size(); ++i) {
    const unsigned c = only < model.classes() ? only : random.below(model.classes());
    items.classes[i] = static_cast<uint8_t>(c);
    items.numbers[i] = content == Content::likely ? model.likely_number(c, random)
                       : content == Content::any  ? model.any_number(c, random)
                                                  : static_cast<uint16_t>(random.next());
  }
  for (uint32_t& x : items.states.x) x = kLowestState + random.below(kLowestState);
  return items;
}

// What was encoded comes back, and takes all the words; the numbers of escapes are 0.
void test_coding(const DeltaKernels& kernels, const DeltaModel& model, const Items& items,
                 Digest& digest) {
  const Encoded encoded = encode_alike(kernels, model, items);
  const Decoded decoded = decode_alike(kernels, model, items, encoded);
  digest.update(encoded.words);
  digest.update(encoded.escapes);
  CHECK(decoded.words == encoded.words.size() && decoded.states == items.states);
  CHECK(decoded.escapes == encoded.escapes);
  for (size_t i = 0; i < items.numbers.size(); ++i) {
    const bool is_escape = (encoded.escapes[i / kDeltaStep] >> i % kDeltaStep & 1) != 0;
    CHECK(decoded.numbers[i] == (is_escape ? 0 : items.numbers[i]));
  }
}

void test_noise(const DeltaKernels& kernels, const DeltaModel& model, unsigned groups, size_t steps,
                Digest& digest, Random& random) {
  const Items items = random_items(model, groups, steps, Content::noise, random);
  Encoded noise{random.bytes(64 * steps), random_states(random), {}};
  if (random.below(4) == 0) {  // states that no encoder has
    for (uint32_t& x : noise.states.x) x = static_cast<uint32_t>(random.next() >> random.below(64));
  }
  const Decoded decoded = decode_alike(kernels, model, items, noise);
  digest.update(decoded.numbers);
  digest.update(decoded.escapes);
}

// States around the multiples of a frequency and around where a word is emitted.
void test_divisions(const DeltaKernels& kernels, const DeltaModel& model, Random& random) {
  Items items = random_items(model, 1, 1, Content::any, random);
  items.states = random_states(random);
  const Masks escapes = encode(kScalarDeltaKernels, model, items, Against::back).escapes;
  for (unsigned lane = 0; lane < kLanesPerGroup; ++lane) {
    const unsigned place = lane_place(lane), c = items.classes[place];
    const unsigned v = items.numbers[place] >> model.tables().raw[c];
    unsigned entry = kDeltaEscape;
    if ((escapes[0] >> place & 1) == 0) {
      while (--entry != 0 && kDeltaBase[entry] > v) continue;
    }
    const unsigned coder = model.tables().coder[kDeltaEntries * c + entry];
    const uint64_t f = coder & 4095, q = coder >> 12, limit = uint64_t{1} << 20;
    // The largest quotient that needs no word is 2^20 - 1.
    const uint64_t quotient = random.below(2) == 0 ? limit - random.below(4) : random.below(limit);
    const uint64_t x = ((quotient * f) >> q) + random.below(3) - 1;
    if (x >= kLowestState && x <= UINT32_MAX) items.states.x[lane] = static_cast<uint32_t>(x);
  }
  encode_alike(kernels, model, items);
}

void test_model(const DeltaKernels& kernels, const DeltaModel& model, Digest& digest,
                Random& random) {
  for (const unsigned groups : {1u, 2u, 4u}) {
    for (const size_t rounds : {0u, 1u, 2u, 9u}) {
      const size_t steps = groups * rounds;
      for (const Content content : kContents) {
        test_coding(kernels, model, random_items(model, groups, steps, content, random), digest);
      }
      test_noise(kernels, model, groups, steps, digest, random);
    }
  }
  for (unsigned i = 0; i < 20; ++i) test_divisions(kernels, model, random);
}

}  // namespace

uint64_t test_delta(const Kernels& kernels) {
  Random random(7);
  Digest digest;
  for (unsigned classes = 1; classes <= kDeltaClasses; ++classes) {
    for (const DeltaSpread spread : kDeltaSpreads) {
      for (unsigned i = 0; i < 2; ++i) {
        test_model(*kernels.delta, random_delta_model(classes, spread, random), digest, random);
      }
    }
  }
  return digest.value();
}

}  // namespace bf16codecs::test
