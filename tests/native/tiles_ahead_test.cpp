// Decoding a tile while the one before it is restored, against the one after the other.

#include <algorithm>
#include <cstring>

#include "check.h"
#include "kernels_test.h"
#include "tiles_tables.h"

namespace bf16codecs::test {
namespace {

Bytes padded(Bytes bytes) {
  bytes.resize(bytes.size() + kTileSlack, 0x5A);
  return bytes;
}

// Noise of which one symbol in `rarity` is an escape.
Bytes random_symbols(size_t n, unsigned rarity, Random& random) {
  Bytes symbols(n);
  for (uint8_t& s : symbols) {
    s = static_cast<uint8_t>(random.below(rarity) == 0 ? 0 : 1 + random.below(255));
  }
  return symbols;
}

// A tile to be restored.
struct Before {
  TileShape shape;
  TileOrder order;
  Words scales;
  Bytes symbols, records;
  Words escapes;  // fewer than there are, now and then

  Before(const TileKernels& kernels, const TileModel& model, const KeyLayout& layout,
         bool to_items, size_t n, Random& random)
      : shape{model.classes, layout.raw_bits, static_cast<uint16_t>((1u << layout.key_bits) - 1),
              static_cast<uint16_t>(model.first), static_cast<uint16_t>(model.end), to_items},
        scales(random_scales(n, ScaleKind::near, layout.scale_limit(), random)),
        symbols(padded(random_symbols(n, 2 + random.below(500), random))),
        records(padded(random.bytes(n / 8 * layout.raw_bits))),
        escapes(random_words(random.below(2) * n, shape.key_mask + 1, random)) {
    scales.resize(n + kTileSlack / 2);
    kernels.order(scales.data(), n, order);
  }

  size_t size() const { return scales.size() - kTileSlack / 2; }
  TileItems items(uint8_t* out) const {
    return {&order, symbols.data(), scales.data(), records.data(), size(), out};
  }
  TileEscapes list() const {
    const auto* const begin = reinterpret_cast<const uint8_t*>(escapes.data());
    return {begin, begin + 2 * escapes.size(), false};
  }
};

// The words and classes of a tile to be decoded.
struct Coded {
  unsigned groups;
  Bytes words, classes;
  uint32_t states[kMaxLanes];

  Coded(const TileModel& model, unsigned n_groups, size_t steps, Random& random)
      : groups(n_groups),
        words(random.bytes(2 * kStepItems * steps + kTileWordMargin)),
        classes(steps) {
    for (uint8_t& c : classes) c = static_cast<uint8_t>(random.below(model.classes));
    for (uint32_t& x : states) {
      x = static_cast<uint32_t>(kLowestState + random.below(0xFFFF0000));
    }
  }

  TileDecoder decoder() const {
    TileDecoder d{groups, words.data(), {}};
    std::copy_n(states, kMaxLanes, d.x);
    return d;
  }
};

void test_both(const TileKernels& kernels, const TileModel& model, const Before& before,
               const Coded& coded) {
  const std::vector<TileTable>& tables = kernels.reads_slots ? model.tables : model.rows;
  const size_t n = before.size(), steps = coded.classes.size(), decoded = kStepItems * steps;
  Bytes out(2 * n + kTileSlack), expected_out(out.size());
  Bytes symbols(decoded + kTileSlack), expected_symbols(symbols.size());

  TileEscapes expected_list = before.list();
  kernels.restore(before.shape, before.items(expected_out.data()), expected_list);
  TileDecoder expected = coded.decoder();
  kernels.decode(expected, tables.data(), coded.classes.data(), steps, expected_symbols.data());

  TileEscapes list = before.list();
  TileDecoder d = coded.decoder();
  kernels.decode_restore(d, tables.data(), coded.classes.data(), steps, symbols.data(),
                         before.shape, before.items(out.data()), list);
  CHECK(std::equal(out.begin(), out.end() - kTileSlack, expected_out.begin()));
  CHECK(std::equal(symbols.begin(), symbols.end() - kTileSlack, expected_symbols.begin()));
  CHECK(list.next == expected_list.next && list.overrun == expected_list.overrun);
  CHECK(d.words == expected.words);
  CHECK(std::equal(d.x, d.x + kLanesPerGroup * d.groups, expected.x));
}

}  // namespace

void test_tiles_ahead(const Kernels& set) {
  const TileKernels& kernels = *set.tiles;
  if (kernels.decode_restore == nullptr) return;
  Random random(6);
  for (const unsigned classes : {1u, kTileClasses}) {
    const TileModel model = random_model(classes, Spread::any, random);
    for (const KeyLayout& layout : kLayouts) {
      for (const bool to_items : {false, true}) {
        if (to_items && layout.key_bits != 16) continue;
        for (const unsigned groups : {1u, 2u, 4u}) {
          for (unsigned i = 0; i < 12; ++i) {
            const size_t n = kRecordItems * (1 + random.below(i == 0 ? 192 : 20));
            const size_t steps = groups * (1 + random.below((i == 1 ? 384 : 40) / groups));
            test_both(kernels, model, {kernels, model, layout, to_items, n, random},
                      {model, groups, steps, random});
          }
        }
      }
    }
  }
}

}  // namespace bf16codecs::test
