// The kernels of the tiles mode against the scalar ones: on what encoders write, on noise, on
// states at the edges of the divisions, with any number of escapes, and from keys to keys. None has
// more memory than kernels/tiles.h says.

#include <algorithm>
#include <cstring>

#include "check.h"
#include "kernels_test.h"
#include "states.h"
#include "tiles_arenas.h"
#include "tiles_tables.h"

namespace bf16codecs::test {
namespace {

// Each step's table.
Bytes random_classes(const TileModel& model, size_t steps, Random& random) {
  Bytes classes(steps);
  for (uint8_t& c : classes) c = static_cast<uint8_t>(random.below(model.classes));
  if (random.below(2) == 0) std::sort(classes.begin(), classes.end());
  return classes;
}

struct Encoded {
  Bytes words;
  States states;
  bool operator==(const Encoded&) const = default;
};

Encoded encode(const TileKernels& kernels, const TileModel& model, unsigned groups,
               const States& states, const Bytes& classes, const Bytes& symbols, Against side) {
  const size_t room = kEncodeMargin + 2 * symbols.size();
  uint8_t* const end = arenas().words.room(room, side) + room;
  TileEncoder e{groups, end, {}};
  std::copy_n(states.x, kMaxLanes, e.x);
  const std::vector<TileCodeTable> tables = model.code_tables_for(kernels);
  kernels.encode(e, tables.data(), classes.data(), classes.size(),
                 arenas().symbols.holding(symbols, side, kTileSlack));
  Encoded result{{e.words, end}, {}};
  std::copy_n(e.x, kMaxLanes, result.states.x);
  return result;
}

Encoded encode_alike(const TileKernels& kernels, const TileModel& model, unsigned groups,
                     const States& states, const Bytes& classes, const Bytes& symbols) {
  const Encoded expected =
      encode(kScalarTileKernels, model, groups, states, classes, symbols, Against::back);
  for (const Against side : kBothSides) {
    CHECK(encode(kernels, model, groups, states, classes, symbols, side) == expected);
  }
  return expected;
}

struct Decoded {
  size_t words;
  States states;
  Bytes symbols;
  bool operator==(const Decoded&) const = default;
};

Decoded decode(const TileKernels& kernels, const TileModel& model, unsigned groups,
               const Encoded& source, const Bytes& classes, Against side) {
  const size_t n = kStepItems * classes.size();
  Bytes words = source.words;
  words.resize(2 * n, 0x5A);
  const uint8_t* const begin = arenas().words.holding(words, side);
  TileDecoder d{groups, begin, {}};
  std::copy_n(source.states.x, kMaxLanes, d.x);
  const Output symbols(arenas().symbols, n, 0, side);
  const std::vector<TileTable> tables = model.tables_for(kernels);
  kernels.decode(d, tables.data(), classes.data(), classes.size(), symbols.data());
  Decoded result{static_cast<size_t>(d.words - begin), {}, symbols.bytes()};
  std::copy_n(d.x, kMaxLanes, result.states.x);
  return result;
}

Decoded decode_alike(const TileKernels& kernels, const TileModel& model, unsigned groups,
                     const Encoded& source, const Bytes& classes) {
  const Decoded expected =
      decode(kScalarTileKernels, model, groups, source, classes, Against::back);
  for (const Against side : kBothSides) {
    CHECK(decode(kernels, model, groups, source, classes, side) == expected);
  }
  return expected;
}

enum class Content { likely, any, escapes };
constexpr Content kContents[] = {Content::likely, Content::any, Content::escapes};

// What was encoded comes back, and takes all the words.
void test_coding(const TileKernels& kernels, const TileModel& model, unsigned groups, size_t steps,
                 Content content, Random& random) {
  const Bytes classes = random_classes(model, steps, random);
  Bytes symbols(kStepItems * steps);
  for (size_t i = 0; i < symbols.size() && content != Content::escapes; ++i) {
    symbols[i] = content == Content::likely ? model.likely_symbol(classes[i / kStepItems], random)
                                            : model.any_symbol(random);
  }
  States states = random_states(random);
  for (unsigned lane = 0; lane < kMaxLanes; ++lane) states.x[lane] = 1u << 16 | random.below(65536);
  const Encoded encoded = encode_alike(kernels, model, groups, states, classes, symbols);
  const Decoded decoded = decode_alike(kernels, model, groups, encoded, classes);
  CHECK(decoded.symbols == symbols && decoded.words == encoded.words.size());
  CHECK(decoded.states == states);
}

// States around the multiples of an entry's frequency and around where a word is emitted.
void test_divisions(const TileKernels& kernels, const TileModel& model, Random& random) {
  const uint8_t c = static_cast<uint8_t>(random.below(model.classes));
  const TileCodeTable& table = model.code_tables[c];
  Bytes symbols(kStepItems);
  for (uint8_t& s : symbols) s = model.any_symbol(random);
  States states = random_states(random);
  for (unsigned lane = 0; lane < kLanesPerGroup; ++lane) {
    const unsigned symbol = symbols[lane_place(lane)];
    const unsigned coder = table.coder[table.entry_of[symbol]];
    const uint64_t f = coder & 0x1FFF, n = coder >> 13, limit = uint64_t{1} << 20;
    // The largest quotient that needs no word is 2^20 - 1.
    const uint64_t q = random.below(2) == 0 ? limit - random.below(4) : random.below(limit);
    const uint64_t x = ((q * f) >> n) + random.below(3) - 1;
    if (x >= kLowestState && x <= UINT32_MAX) states.x[lane] = static_cast<uint32_t>(x);
  }
  encode_alike(kernels, model, 1, states, {c}, symbols);
}

void test_model(const TileKernels& kernels, const TileModel& model, Random& random) {
  for (const unsigned groups : {1u, 2u, 4u}) {
    for (const size_t rounds : {0u, 1u, 2u, 7u}) {
      const size_t steps = groups * rounds;
      for (const Content content : kContents) {
        test_coding(kernels, model, groups, steps, content, random);
      }
      const Encoded noise{random.bytes(2 * kStepItems * steps), random_states(random)};
      decode_alike(kernels, model, groups, noise, random_classes(model, steps, random));
    }
  }
  for (unsigned i = 0; i < 20; ++i) test_divisions(kernels, model, random);
}

// A tile's scales and what follows from them.
struct Tile {
  TileShape shape;
  Words scales;
  TileOrder order;

  const TileOrder& order_in_use() const { return shape.classes == 1 ? no_order() : order; }
};

// The masks of records that are not there included, which are left as they were.
bool same_order(const TileOrder& a, const TileOrder& b) {
  return std::memcmp(a.mask, b.mask, sizeof a.mask) == 0 &&
         std::equal(a.begin, a.begin + kTileClasses + 1, b.begin);
}

// Leaves the order that the kernels made, with what only they use.
void order_alike(const TileKernels& kernels, Tile& tile) {
  const size_t n = tile.scales.size();
  static TileOrder expected;
  std::memset(&expected, 0x5A, sizeof expected);
  kScalarTileKernels.order(tile.scales.data(), n, expected);
  for (const Against side : kBothSides) {
    std::memset(&tile.order, 0x5A, sizeof tile.order);
    kernels.order(arenas().scales.holding(tile.scales, side), n, tile.order);
    CHECK(same_order(tile.order, expected));
  }
}

struct Restored {
  Bytes out;
  size_t escapes;
  bool overrun;
  bool operator==(const Restored&) const = default;
};

struct Arranged {
  Bytes symbols, records;
  Words escapes;
  bool operator==(const Arranged&) const = default;
};

Restored restore(const TileKernels& kernels, const Tile& tile, const Arranged& source,
                 Against side) {
  const size_t n = tile.scales.size();
  const Words& list = source.escapes;
  const auto* const escapes =
      reinterpret_cast<const uint8_t*>(arenas().escapes.holding(list, side));
  TileEscapes next{escapes, escapes + 2 * list.size(), false};
  const Output out(arenas().keys, 2 * n, 0, side);
  const TileItems items = {&tile.order_in_use(),
                           arenas().symbols.holding(source.symbols, side, kTileSlack),
                           arenas().scales.holding(tile.scales, side),
                           arenas().records.holding(source.records, side),
                           n,
                           out.data()};
  kernels.restore(tile.shape, items, next);
  CHECK(next.end == escapes + 2 * list.size());
  return {out.bytes(), static_cast<size_t>(next.next - escapes), next.overrun};
}

Restored restore_alike(const TileKernels& kernels, const Tile& tile, const Arranged& source) {
  const Restored expected = restore(kScalarTileKernels, tile, source, Against::back);
  for (const Against side : kBothSides) {
    CHECK(restore(kernels, tile, source, side) == expected);
  }
  return expected;
}

Arranged arrange(const TileKernels& kernels, const Tile& tile, const Words& keys, Against side) {
  const size_t n = keys.size(), size = n / kRecordItems * record_size(tile.shape.raw_bits);
  auto* const escapes = reinterpret_cast<uint16_t*>(arenas().escapes.room(2 * n, side));
  const Output symbols(arenas().symbols, n, kTileSlack, side);
  const Output records(arenas().records, size, 0, side);
  uint16_t* const end = kernels.arrange(
      tile.shape, tile.order_in_use(), arenas().keys.holding(keys, side),
      arenas().scales.holding(tile.scales, side), n, symbols.data(), records.data(), escapes);
  return {symbols.bytes(), records.bytes(), {escapes, end}};
}

Arranged arrange_alike(const TileKernels& kernels, const Tile& tile, const Words& keys) {
  const Arranged expected = arrange(kScalarTileKernels, tile, keys, Against::back);
  for (const Against side : kBothSides) {
    CHECK(arrange(kernels, tile, keys, side) == expected);
  }
  return expected;
}

// Noise as symbols, records and escapes, of which there may be too few.
void test_restore(const TileKernels& kernels, const Tile& tile, Random& random) {
  const size_t n = tile.scales.size();
  Arranged source{random.bytes(n), random.bytes(n / 8 * tile.shape.raw_bits),
                  random_words(n, tile.shape.key_mask + 1, random)};
  const unsigned kind = random.below(4);
  for (uint8_t& s : source.symbols) {
    if (kind == 0) s = static_cast<uint8_t>(s | 1);  // no escape
    if (kind == 1) s = static_cast<uint8_t>(s % 2 * (1 + s / 2));
    if (kind == 2) s = 0;
  }
  restore_alike(kernels, tile, source);
  source.escapes.resize(random.below(n / 4));
  restore_alike(kernels, tile, source);
  source.escapes.clear();
  restore_alike(kernels, tile, source);
}

// Keys near the scales, and anywhere one time in `outside`.
Words random_keys(const Tile& tile, unsigned outside, Random& random) {
  Words keys = random_words(tile.scales.size(), tile.shape.key_mask + 1, random);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (outside != 0 && random.below(outside) == 0) continue;
    const int at = tile.scales[i] / static_cast<int>(kScaleFractions) * 8 - kSymbolOrigin;
    const unsigned symbol = tile.shape.first + random.below(tile.shape.end - tile.shape.first);
    const int high = std::max(at + static_cast<int>(symbol), 0);
    const unsigned raw = keys[i] & ((1u << tile.shape.raw_bits) - 1);
    keys[i] = static_cast<uint16_t>((static_cast<unsigned>(high) << tile.shape.raw_bits | raw) &
                                    tile.shape.key_mask);
  }
  return keys;
}

// Each step's table, by the class of the 17th of its symbols.
Bytes step_classes(const Tile& tile) {
  Bytes classes(tile.scales.size() / kStepItems);
  for (size_t step = 0; step < classes.size() && tile.shape.classes != 1; ++step) {
    while (tile.order.begin[classes[step] + 1] <= kStepItems * step + 16) ++classes[step];
  }
  return classes;
}

uint16_t item_of(uint16_t key) {
  return static_cast<uint16_t>(key >> 1 | key << 15);
}

// From keys to words and back.
void test_tile(const TileKernels& kernels, const TileModel& model, const Tile& tile,
               unsigned outside, Random& random) {
  const size_t n = tile.scales.size();
  const Words keys = random_keys(tile, outside, random);
  Arranged arranged = arrange_alike(kernels, tile, keys);
  const Bytes classes = step_classes(tile);
  const unsigned groups = n % (4 * kStepItems) == 0 ? 4 : 2;
  const Encoded encoded =
      encode_alike(kernels, model, groups, random_states(random), classes, arranged.symbols);
  const Decoded decoded = decode_alike(kernels, model, groups, encoded, classes);
  CHECK(decoded.symbols == arranged.symbols && decoded.words == encoded.words.size());

  arranged.symbols = decoded.symbols;
  const Restored restored = restore_alike(kernels, tile, arranged);
  CHECK(!restored.overrun && restored.escapes == 2 * arranged.escapes.size());
  for (size_t i = 0; i < n; ++i) {
    uint16_t word;
    std::memcpy(&word, &restored.out[2 * i], 2);
    CHECK(word == (tile.shape.to_items ? item_of(keys[i]) : keys[i]));
  }
}

void test_layout(const TileKernels& kernels, const TileModel& model, const KeyLayout& layout,
                 size_t n, Random& random) {
  for (const ScaleKind kind : kScaleKinds) {
    for (const bool to_items : {false, true}) {
      if (to_items && layout.key_bits != 16) continue;
      Tile tile;
      tile.shape = {model.classes,
                    layout.raw_bits,
                    static_cast<uint16_t>((1u << layout.key_bits) - 1),
                    static_cast<uint16_t>(model.first),
                    static_cast<uint16_t>(model.end),
                    to_items};
      tile.scales = random_scales(n, kind, layout.scale_limit(), random);
      order_alike(kernels, tile);
      test_restore(kernels, tile, random);
      for (const unsigned outside : {0u, 1u, 30u}) {
        test_tile(kernels, model, tile, outside, random);
      }
    }
  }
}

size_t random_size(Random& random) {
  const size_t limit = random.below(8) == 0 ? kMaxTileItems : 1024;
  return kRecordItems * (1 + random.below(limit / kRecordItems));
}

}  // namespace

void test_tiles(const Kernels& kernels) {
  Random random(5);
  for (const unsigned classes : {1u, kTileClasses}) {
    for (const Spread spread : kSpreads) {
      for (unsigned i = 0; i < 6; ++i) {
        const TileModel model = random_model(classes, spread, random);
        test_model(*kernels.tiles, model, random);
        for (const KeyLayout& layout : kLayouts) {
          test_layout(*kernels.tiles, model, layout, random_size(random), random);
        }
      }
    }
    const TileModel model = random_model(classes, Spread::any, random);
    for (const KeyLayout& layout : kLayouts) {
      test_layout(*kernels.tiles, model, layout, kRecordItems, random);
      test_layout(*kernels.tiles, model, layout, kMaxTileItems, random);
    }
  }
}

}  // namespace bf16codecs::test
