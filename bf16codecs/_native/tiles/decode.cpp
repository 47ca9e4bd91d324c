// Decoding of a block in the tiles mode, tile by tile (docs/format_tiles.md, "Tiles" and "Payload
// of a block"). Where a kernel set can, the symbols of a tile are decoded while the tile before it
// is restored: so there are two tiles, and the words are one tile ahead of the items.

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "format/errors.h"
#include "format/little_endian.h"
#include "grid/item_scales.h"
#include "kernels/kernels.h"
#include "rans/payload.h"
#include "rans/states.h"
#include "tiles/model.h"
#include "tiles/payload.h"

namespace bf16codecs::tiles {
namespace {

[[noreturn]] void corrupt(const char* what) {
  throw CorruptDataError(std::string("tiles: ") + what);
}

unsigned read_groups(Fields& fields) {
  const auto head = fields.number<uint8_t>();
  if (head > 2) corrupt("an unknown head");
  return 1u << head;
}

// Keys as 16-bit words; 8-bit keys are extended to words in `extended`.
const uint8_t* as_words(const uint8_t* keys, size_t n, size_t key_size,
                        std::vector<uint8_t>& extended) {
  if (key_size == 2) return keys;
  extended.resize(2 * n);
  for (size_t i = 0; i < n; ++i) extended[2 * i] = keys[i];
  return extended.data();
}

struct Tile {
  size_t n;
  TileOrder order;
  alignas(64) uint16_t scales[kMaxTileItems];
  alignas(64) uint8_t symbols[kMaxTileItems + kTileSlack];
};

}  // namespace

struct Reader::State {
  State(const Model& model, Fields fields, uint64_t first, size_t n, unsigned groups,
        grid::RowScales row_scales)
      : format(model.layout()),
        tables(model.tables(first)),
        rows(std::move(row_scales)),
        scales(format, model.section(first), rows, first),
        counts(n, groups, raw_bits(format)),
        shape{model.section(first).classes, raw_bits(format), format.mask(), 0, 0, false} {
    decoder.groups = groups;
    if (counts.coded == 0) corrupt("a block with fewer items than lanes");
    read_parts(fields);
  }

  void read_parts(Fields& fields) {
    const size_t key_size = format.bits / 8;
    const auto n_escapes = fields.number<uint32_t>();
    if (n_escapes > counts.coded) corrupt("more escapes than items");
    fields.next = read_states(fields.next, fields.end(), counts.lanes, decoder.x);
    if (fields.next == nullptr) corrupt("first states that are cut off or have unused bits");
    records = fields.take(counts.records - counts.in_states);
    const uint8_t* const escaped = fields.take(n_escapes * key_size);
    const uint8_t* const after = fields.take(counts.rest * key_size);
    if (fields.left() % 2 != 0) corrupt("an odd number of bytes of words");
    words.reset(fields.next, fields.end());
    escapes.next = as_words(escaped, n_escapes, key_size, escape_words);
    escapes.end = escapes.next + 2 * size_t{n_escapes};
    escapes.overrun = false;
    rest = as_words(after, counts.rest, key_size, rest_words);
  }

  // Prepares a tile for decoding: its scales, its order, the tables of its steps, and readable
  // words.
  Tile& prepare(size_t index) {
    Tile& t = tiles[index % 2];
    t.n = counts.tile_size(index);
    scales.fill(counts.tile_begin(index), t.n, t.scales);
    if (shape.classes == 1) {
      std::memset(classes, 0, t.n / kStepItems);
    } else {
      kernels().tiles->order(t.scales, t.n, t.order);
      step_classes(t.order, t.n / kStepItems, classes);
    }
    words.prepare(2 * t.n);
    decoder.words = words.next;
    return t;
  }

  void take_words() {
    words.next = decoder.words;
    if (words.overrun()) corrupt("words that run out");
  }

  void decode_symbols(size_t index) {
    Tile& t = prepare(index);
    kernels().tiles->decode(decoder, tables, classes, t.n / kStepItems, t.symbols);
    take_words();
  }

  // Restores a tile, and decodes the symbols of the next one meanwhile if that is faster.
  void restore(size_t index, uint8_t* out) {
    const Tile& t = tiles[index % 2];
    const TileItems items = {&t.order, t.symbols, t.scales, tile_records(t.n), t.n, out};
    if (is_ahead && index + 1 < counts.tiles) {
      Tile& next = prepare(index + 1);
      kernels().tiles->decode_restore(decoder, tables, classes, next.n / kStepItems, next.symbols,
                                      shape, items, escapes);
      check_escapes();  // before the next tile, so that every instruction set has the same error
      take_words();
    } else {
      kernels().tiles->restore(shape, items, escapes);
      check_escapes();
    }
  }

  void check_escapes() const {
    if (escapes.overrun) corrupt("fewer escapes than its symbols have");
  }

  // The records of a tile. Those of the last one are completed by the bytes in the last states,
  // which all words must have been used for: 2^16 + u, or 2^16 if the records are too short for
  // that.
  const uint8_t* tile_records(size_t n) {
    const size_t size = n / kRecordItems * record_size(shape.raw_bits);
    const uint8_t* const stored = records;
    if (tile + 1 < counts.tiles) {
      records += size;
      return stored;
    }
    for (size_t lane = 0; lane < counts.lanes; ++lane) {
      const uint32_t x = decoder.x[lane];
      const bool is_sound = counts.in_states != 0 ? x >> 16 == 1 : x == kLowestState;
      if (!is_sound) corrupt("a wrong last state");
      store_le(last_records + size - counts.in_states + 2 * lane, static_cast<uint16_t>(x));
    }
    if (words.left() != 0) corrupt("words that are left over");
    std::copy_n(stored, size - counts.in_states, last_records);
    return last_records;
  }

  void store_rest(bool to_items, uint8_t* out) const {
    for (size_t i = 0; i < counts.rest; ++i) {
      const auto key = load_le<uint16_t>(rest + 2 * i);
      store_le(out + 2 * i, to_items ? std::rotr(key, 1) : key);
    }
  }

  const grid::KeyFormat format;
  const TileTable* tables;
  const grid::RowScales rows;
  const grid::ItemScales scales;
  const Counts counts;
  TileShape shape;
  TileDecoder decoder;
  Words words{2 * kMaxTileItems};
  const uint8_t *records = nullptr, *rest = nullptr;
  TileEscapes escapes;
  std::vector<uint8_t> escape_words, rest_words;  // of 8-bit keys
  size_t tile = 0;

  const bool is_ahead = kernels().tiles->decode_restore != nullptr;
  Tile tiles[2];
  alignas(64) uint8_t
      last_records[record_size(kMaxRawBits) * kMaxTileItems / kRecordItems + 2 * kMaxLanes];
  uint8_t classes[kMaxTileItems / kStepItems];
};

Reader::Reader(const Model& model, const uint8_t* payload, size_t size, uint64_t first, size_t n) {
  Fields fields("tiles", payload, size);
  const auto rows_size = fields.number<uint16_t>();
  const uint8_t* const row_bytes = fields.take(rows_size);
  grid::RowScales rows = grid::read_rows(model.section(first), row_bytes, rows_size, first, n);
  const unsigned groups = read_groups(fields);
  state_ = std::make_unique<State>(model, fields, first, n, groups, std::move(rows));
}

Reader::~Reader() = default;

size_t Reader::decode(bool to_items, uint8_t* out) {
  State& s = *state_;
  if (s.tile == s.counts.tiles) return 0;
  if (!s.is_ahead || s.tile == 0) s.decode_symbols(s.tile);
  s.shape.to_items = to_items;
  s.restore(s.tile, out);
  const size_t n = s.counts.tile_size(s.tile);
  if (++s.tile < s.counts.tiles) return n;
  if (s.escapes.next != s.escapes.end) corrupt("escapes that are left over");
  s.store_rest(to_items, out + 2 * n);
  return n + s.counts.rest;
}

}  // namespace bf16codecs::tiles
