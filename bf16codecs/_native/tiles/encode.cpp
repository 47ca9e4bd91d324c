// Encoding of a block in the tiles mode (docs/format_tiles.md, "Tiles" and "Payload of a block").
// First all tiles are arranged: symbols, tables of the steps, records and escapes are collected in
// order. Then all steps are encoded at once, from the last to the first, as the words need it.

#include <algorithm>
#include <memory>

#include "format/little_endian.h"
#include "grid/item_scales.h"
#include "kernels/kernels.h"
#include "rans/states.h"
#include "tiles/fit.h"
#include "tiles/payload.h"

namespace bf16codecs::tiles {
namespace {

// More lanes hide more latency, and each costs 4 bits.
unsigned groups_log2_for(size_t n) {
  return n < size_t{1} << 15 ? 0 : n < size_t{1} << 18 ? 1 : 2;
}

// A block with more escapes is not worth coding in this mode.
size_t most_escapes(size_t n) {
  return n / 8;
}

// Memory in which the parts of a block are collected before their sizes are known. An item gives at
// most one word.
struct Parts {
  uint8_t *symbols, *classes, *records, *words_end;
  uint16_t* escapes;

  Parts(const Counts& counts, size_t most_escapes, Scratch& scratch) {
    constexpr size_t kAlign = 64;
    size_t total = 0;
    const auto reserve = [&](size_t size) {
      const size_t at = total;
      total += (size + kAlign - 1) / kAlign * kAlign;
      return at;
    };
    const size_t symbols_at = reserve(counts.coded + kTileSlack);
    const size_t classes_at = reserve(counts.coded / kStepItems);
    const size_t records_at = reserve(counts.records);
    const size_t escapes_at = reserve(2 * (most_escapes + kMaxTileItems));
    const size_t words_at = reserve(2 * counts.coded + kEncodeMargin);
    size_t room = total + kAlign;
    void* base = scratch.at_least(room);
    auto* const bytes = static_cast<uint8_t*>(std::align(kAlign, total, base, room));
    symbols = bytes + symbols_at;
    classes = bytes + classes_at;
    records = bytes + records_at;
    escapes = reinterpret_cast<uint16_t*>(bytes + escapes_at);
    words_end = bytes + words_at + 2 * counts.coded + kEncodeMargin;
  }
};

// One tile on its way to symbols.
struct Tile {
  TileOrder order;
  alignas(64) uint16_t scales[kMaxTileItems];
  alignas(64) uint16_t keys[kMaxTileItems];
};

// Arranges all tiles; returns the end of the escapes, or null if there are too many. `escapes` has
// room for those of one tile more than are allowed.
const uint16_t* arrange(const Section& section, const grid::KeyFormat& format, const Items& items,
                        uint64_t first, const Counts& counts, const grid::ItemScales& scales,
                        size_t most_escapes, const Parts& parts) {
  const TileKernels& kernel = *kernels().tiles;
  const TileShape shape{section.classes,
                        raw_bits(format),
                        format.mask(),
                        static_cast<uint16_t>(section.first),
                        static_cast<uint16_t>(section.end),
                        false};
  const auto tile = std::make_unique_for_overwrite<Tile>();
  uint8_t* records = parts.records;
  uint16_t* escapes = parts.escapes;
  for (size_t t = 0; t < counts.tiles; ++t) {
    const size_t at = counts.tile_begin(t), n = counts.tile_size(t), steps = n / kStepItems;
    items.load(first + at, n, tile->keys);
    scales.fill(at, n, tile->scales);
    uint8_t* const classes = parts.classes + at / kStepItems;
    if (section.classes == 1) {
      std::fill_n(classes, steps, uint8_t{0});
    } else {
      kernel.order(tile->scales, n, tile->order);
      step_classes(tile->order, steps, classes);
    }
    escapes = kernel.arrange(shape, tile->order, tile->keys, tile->scales, n, parts.symbols + at,
                             records, escapes);
    if (static_cast<size_t>(escapes - parts.escapes) > most_escapes) return nullptr;
    records += n / kRecordItems * record_size(shape.raw_bits);
  }
  return escapes;
}

// Encodes the symbols; returns the first word. The lanes end, for a decoder, with the last bytes of
// the records in their states, which is where an encoder begins.
const uint8_t* encode_symbols(const TileCodeTable* tables, const Counts& counts, const Parts& parts,
                              TileEncoder& encoder) {
  const uint8_t* const seeds = parts.records + counts.records - counts.in_states;
  for (size_t lane = 0; lane < counts.lanes; ++lane) {
    encoder.x[lane] = kLowestState;
    if (counts.in_states != 0) encoder.x[lane] |= load_le<uint16_t>(seeds + 2 * lane);
  }
  encoder.words = parts.words_end;
  kernels().tiles->encode(encoder, tables, parts.classes, counts.coded / kStepItems, parts.symbols);
  return encoder.words;
}

uint8_t* store_keys(const uint16_t* keys, size_t n, size_t key_size, uint8_t* out) {
  for (size_t i = 0; i < n; ++i, out += key_size) {
    *out = static_cast<uint8_t>(keys[i]);
    if (key_size == 2) out[1] = static_cast<uint8_t>(keys[i] >> 8);
  }
  return out;
}

}  // namespace

size_t encode(const Model& model, const uint8_t* items, uint64_t first, size_t n, Scratch& scratch,
              uint8_t* out, size_t capacity) {
  const unsigned groups_log2 = groups_log2_for(n);
  const Counts counts(n, 1u << groups_log2, raw_bits(grid::KeyFormat(model.layout())));
  if (counts.coded == 0) return 0;
  const BlockChoices choices{model.fit_rows(Items(model.layout(), items, first), first, n),
                             groups_log2, most_escapes(counts.coded), model.code_tables(first)};
  return encode_block(model, choices, items, first, n, scratch, out, capacity);
}

size_t encode_block(const Model& model, const BlockChoices& choices, const uint8_t* items,
                    uint64_t first, size_t n, Scratch& scratch, uint8_t* out, size_t capacity) {
  const grid::KeyFormat format(model.layout());
  const size_t key_size = format.bits / 8;
  const Counts counts(n, 1u << choices.groups_log2, raw_bits(format));
  if (counts.coded == 0) return 0;
  const Section& section = model.section(first);
  const Items source(model.layout(), items, first);
  const std::vector<uint8_t> side = grid::write_rows(choices.rows);
  const Parts parts(counts, choices.most_escapes, scratch);
  const grid::ItemScales scales(format, section, choices.rows, first);
  const uint16_t* const escapes_end =
      arrange(section, format, source, first, counts, scales, choices.most_escapes, parts);
  if (escapes_end == nullptr || side.size() > UINT16_MAX) return 0;
  TileEncoder encoder;
  encoder.groups = 1u << choices.groups_log2;
  const uint8_t* const words = encode_symbols(choices.tables, counts, parts, encoder);

  const auto n_escapes = static_cast<size_t>(escapes_end - parts.escapes);
  const auto words_size = static_cast<size_t>(parts.words_end - words);
  const size_t most = 7 + side.size() + 5 * counts.lanes + counts.records - counts.in_states +
                      (n_escapes + counts.rest) * key_size + words_size;
  if (most > capacity) return 0;
  store_le(out, static_cast<uint16_t>(side.size()));
  uint8_t* next = std::copy(side.begin(), side.end(), out + 2);
  *next++ = static_cast<uint8_t>(choices.groups_log2);
  store_le(next, static_cast<uint32_t>(n_escapes));
  next = write_states(encoder.x, counts.lanes, next + 4);
  next = std::copy_n(parts.records, counts.records - counts.in_states, next);
  next = store_keys(parts.escapes, n_escapes, key_size, next);
  uint16_t rest[kMaxLanes];
  source.load(first + counts.coded, counts.rest, rest);
  next = store_keys(rest, counts.rest, key_size, next);
  next = std::copy_n(words, words_size, next);
  return static_cast<size_t>(next - out);
}

}  // namespace bf16codecs::tiles
