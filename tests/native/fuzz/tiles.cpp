// The tile model of level "best" alone (docs/format_tiles.md): models of several sections with any
// numbers, blocks anywhere in them, and payloads that are written with such a model, sound and
// damaged, or noise; on every instruction set.
//
// An input is numbers, which are coded to a model here.

#include <algorithm>
#include <bit>

#include "core.h"
#include "format/little_endian.h"
#include "grid/item_scales.h"
#include "grid/keys.h"
#include "kernels/kernels.h"
#include "tile_models.h"
#include "tiles/model.h"

namespace bf16codecs::fuzz {
namespace {

constexpr unsigned kMostSections = 3;

using Words = std::vector<uint16_t>;

// A block of the tiles mode, and the choices of its encoder.
struct TileBlock {
  uint64_t first = 0;
  unsigned groups_log2 = 0;
  grid::RowScales rows;
  Words keys;
};

// A model as it stands in a frame of whole sections.
struct ModelBytes {
  Layout layout;
  unsigned sections;
  Bytes bytes;

  uint64_t items() const { return sections * grid::kSectionItems; }
  tiles::Model read(uint64_t first, uint64_t last) const {
    return tiles::Model::read(layout, bytes.data(), bytes.size(), items(), first, last);
  }
  tiles::Model read() const { return read(0, items()); }
};

// Where a block is, what its rows are, and how many items it has.
TileBlock read_block(Reader& in, unsigned sections, const tiles::Model& model) {
  TileBlock block;
  const uint8_t kind = in.u8(), head = in.u8();
  const uint32_t position = in.u32();
  // Seldom several tiles, or too few items.
  const size_t n = 1 + in.u16() % (kind % 8 == 0 ? 3 * kTileItems : kind % 8 == 1 ? 200u : 1000u);
  block.keys.resize(n);
  block.first =
      position % sections * grid::kSectionItems + position / 4 % (grid::kSectionItems - n + 1);
  block.groups_log2 = head % 3;
  block.rows = read_rows(in, kind / 8 % 12, head >= 128,
                         grid::rows_in(model.section(block.first), block.first, n));
  return block;
}

// Keys with symbols that the input names, or with any; some anywhere, which are escapes.
void fill_keys(Reader& in, const tiles::Model& model, TileBlock& block) {
  const uint8_t escapes = in.u8();
  test::Random random(in.u16());
  const grid::KeyFormat format(model.layout());
  const tiles::Section& section = model.section(block.first);
  const unsigned raw_bits = tiles::raw_bits(format);
  Words scales(block.keys.size());
  grid::ItemScales(format, section, block.rows, block.first).fill(0, scales.size(), scales.data());
  for (size_t i = 0; i < block.keys.size(); ++i) {
    unsigned key = random.below(65536);
    const unsigned any = in.left() == 0 ? random.below(256) : in.rest()[random.below(in.left())];
    const unsigned symbol = section.first + any % (section.end - section.first);
    if (random.below(256) >= escapes) {
      const unsigned high = symbol + 8u * (scales[i] / kScaleFractions) - kSymbolOrigin;
      key = high << raw_bits | (key & ((1u << raw_bits) - 1));
    }
    block.keys[i] = static_cast<uint16_t>(key & format.mask());
  }
}

struct Decoded {
  std::string error;
  Words words;

  bool operator==(const Decoded& other) const {
    return error == other.error && (!error.empty() || words == other.words);
  }
};

// Decodes with what a reader of this block alone reads of the model.
Decoded decode(const ModelBytes& model, const Bytes& payload, const TileBlock& block,
               bool to_items) {
  const size_t n = block.keys.size();
  const std::unique_ptr<uint8_t[]> bytes(new uint8_t[payload.size()]);
  const std::unique_ptr<uint8_t[]> out(new uint8_t[2 * n]);
  std::copy(payload.begin(), payload.end(), bytes.get());
  Decoded result;
  size_t at = 0;
  result.error = error_of([&] {
    const tiles::Model part = model.read(block.first, block.first + n);
    tiles::Reader reader(part, bytes.get(), payload.size(), block.first, n);
    while (const size_t decoded = reader.decode(to_items, out.get() + 2 * at)) at += decoded;
  });
  if (!result.error.empty()) return result;
  CHECK(at == n);
  for (size_t i = 0; i < n; ++i) result.words.push_back(load_le<uint16_t>(out.get() + 2 * i));
  return result;
}

// Decodes with every instruction set.
Decoded decode_alike(const ModelBytes& model, const Bytes& payload, const TileBlock& block,
                     bool to_items) {
  use(kScalarKernels);
  const Decoded scalar = decode(model, payload, block, to_items);
  for (const Kernels* set : instruction_sets()) {
    if (set == &kScalarKernels) continue;
    use(*set);
    CHECK(decode(model, payload, block, to_items) == scalar);
  }
  return scalar;
}

// Items whose keys these are; what else they have is zeros.
Bytes items_of(const Layout& layout, const Words& keys) {
  const size_t width = layout.planes(), bits = 8 * width;
  const grid::KeyFormat format(layout);
  Bytes items(width * keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint64_t rotated = uint64_t{keys[i]} << (bits - format.bits);
    const uint64_t item = rotated >> 1 | rotated << (bits - 1);
    for (size_t byte = 0; byte < width; ++byte) {
      items[width * i + byte] = static_cast<uint8_t>(item >> 8 * byte);
    }
  }
  return items;
}

// Its payload by the core's encoder, with any model and choices; empty if it has too few items.
Bytes encode(const tiles::Model& model, const TileBlock& block) {
  const tiles::Section& section = model.section(block.first);
  std::vector<TileCodeTable> tables;
  for (unsigned c = 0; c < section.classes; ++c) {
    tables.push_back(
        tiles::make_code_table(section.intervals[c], section.escape_frequency, *kernels().tiles));
  }
  const size_t n = block.keys.size();
  const Bytes items = items_of(model.layout(), block.keys);
  Bytes payload(10 * n + kPayloadSlack);
  Scratch scratch;
  payload.resize(tiles::encode_block(model, {block.rows, block.groups_log2, n, tables.data()},
                                     items.data(), block.first, n, scratch, payload.data(),
                                     payload.size()));
  return payload;
}

// Encodes with every instruction set.
Bytes encode_alike(const tiles::Model& model, const TileBlock& block) {
  use(kScalarKernels);
  const Bytes scalar = encode(model, block);
  for (const Kernels* set : instruction_sets()) {
    if (set == &kScalarKernels) continue;
    use(*set);
    CHECK(encode(model, block) == scalar);
  }
  return scalar;
}

Words as_items(Words keys) {
  for (uint16_t& key : keys) key = std::rotr(key, 1);
  return keys;
}

void test_block(const ModelBytes& bytes, const tiles::Model& model, Reader& in) {
  const uint8_t damages = in.u8() % 8;
  test::Random random(in.u16());
  const bool to_items = bytes.layout.is_rotated16() && random.below(4) != 0;
  TileBlock block = read_block(in, bytes.sections, model);
  if (damages == 7) {  // the input is a payload itself
    decode_alike(bytes, Bytes(in.rest(), in.rest() + in.left()), block, to_items);
    return;
  }
  fill_keys(in, model, block);
  Bytes payload = encode_alike(model, block);
  const Decoded sound = decode_alike(bytes, payload, block, to_items);
  if (payload.empty()) {
    CHECK(!sound.error.empty());
    return;
  }
  CHECK(sound.error.empty());
  CHECK(sound.words == (to_items ? as_items(block.keys) : block.keys));
  if (damages == 0) return;
  damage(payload, damages, random);
  decode_alike(bytes, payload, block, to_items);
}

}  // namespace
}  // namespace bf16codecs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bf16codecs;
  using namespace bf16codecs::fuzz;
  use(kScalarKernels);
  Reader in(data, size);
  ModelBytes bytes{{DType{static_cast<uint8_t>(in.u8() % kDTypes)}, false}, 0, {}};
  bytes.sections = 1 + in.u8() % kMostSections;
  TileModelWriter writer(in, grid::KeyFormat(bytes.layout).max_scale());
  for (unsigned i = 0; i < bytes.sections; ++i) writer.put_section();
  bytes.bytes = writer.finish();

  tiles::Model model;
  if (!error_of([&] { model = bytes.read(); }).empty()) return 0;
  bytes.bytes = model.write();
  CHECK(bytes.read().write() == bytes.bytes);
  test_block(bytes, model, in);
  return 0;
}
