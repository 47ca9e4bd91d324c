// Decoding a tile while the one before it is restored, against the one after the other, with no
// more memory than kernels/tiles.h says.

#include <algorithm>

#include "check.h"
#include "kernels_test.h"
#include "states.h"
#include "tiles_arenas.h"
#include "tiles_tables.h"

namespace bf16codecs::test {
namespace {

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

  Before(const TileKernels& kernels, const TileModel& model, const KeyLayout& layout, bool to_items,
         size_t n, Random& random)
      : shape{model.classes,
              layout.raw_bits,
              static_cast<uint16_t>((1u << layout.key_bits) - 1),
              static_cast<uint16_t>(model.first),
              static_cast<uint16_t>(model.end),
              to_items},
        scales(random_scales(n, ScaleKind::near, layout.scale_limit(), random)),
        symbols(random_symbols(n, 2 + random.below(500), random)),
        records(random.bytes(n / 8 * layout.raw_bits)),
        escapes(random_words(random.below(2) * n, shape.key_mask + 1, random)) {
    kernels.order(scales.data(), n, order);
  }

  TileItems items(uint8_t* out, Against side) const {
    return {shape.classes == 1 ? &no_order() : &order,
            arenas().symbols.holding(symbols, side, kTileSlack),
            arenas().scales.holding(scales, side),
            arenas().records.holding(records, side),
            scales.size(),
            out};
  }
  TileEscapes list(Against side) const {
    const auto* const begin =
        reinterpret_cast<const uint8_t*>(arenas().escapes.holding(escapes, side));
    return {begin, begin + 2 * escapes.size(), false};
  }
};

// The words and classes of a tile to be decoded.
struct Coded {
  unsigned groups;
  Bytes words, classes;
  States states;

  Coded(const TileModel& model, unsigned n_groups, size_t steps, Random& random)
      : groups(n_groups),
        words(random.bytes(2 * kStepItems * steps)),
        classes(steps),
        states(random_states(random)) {
    for (uint8_t& c : classes) c = static_cast<uint8_t>(random.below(model.classes));
  }

  TileDecoder decoder(Against side) const {
    TileDecoder d{groups, arenas().words.holding(words, side), {}};
    std::copy_n(states.x, kMaxLanes, d.x);
    return d;
  }
};

struct Result {
  Bytes out, symbols;
  size_t escapes, words;
  bool overrun;
  States states;
  bool operator==(const Result&) const = default;
};

Result run(const TileKernels& kernels, const TileModel& model, const Before& before,
           const Coded& coded, bool at_once, Against side) {
  const std::vector<TileTable> prepared = model.tables_for(kernels);
  const TileTable* const tables = prepared.data();
  const uint8_t* const classes = coded.classes.data();
  const size_t steps = coded.classes.size();
  const Output out(arenas().keys, 2 * before.scales.size(), 0, side);
  const Output symbols(arenas().decoded, kStepItems * steps, 0, side);
  const TileItems items = before.items(out.data(), side);
  const TileEscapes all = before.list(side);
  TileEscapes list = all;
  const TileDecoder start = coded.decoder(side);
  TileDecoder d = start;
  if (at_once) {
    kernels.decode_restore(d, tables, classes, steps, symbols.data(), before.shape, items, list);
  } else {
    kernels.restore(before.shape, items, list);
    kernels.decode(d, tables, classes, steps, symbols.data());
  }
  Result result{out.bytes(),
                symbols.bytes(),
                static_cast<size_t>(list.next - all.next),
                static_cast<size_t>(d.words - start.words),
                list.overrun,
                {}};
  std::copy_n(d.x, kLanesPerGroup * d.groups, result.states.x);
  return result;
}

void test_both(const TileKernels& kernels, const TileModel& model, const Before& before,
               const Coded& coded) {
  const Result expected = run(kernels, model, before, coded, false, Against::back);
  for (const Against side : kBothSides) {
    CHECK(run(kernels, model, before, coded, true, side) == expected);
  }
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
