// The difference mode alone (docs/format_differences.md): models of several sections with any
// numbers, blocks anywhere in them, and payloads that are written with such a model, sound and
// damaged, or noise; on every instruction set, in place and not.
//
// An input is numbers, which are coded to a model here.

#include <algorithm>

#include "core.h"
#include "delta/model.h"
#include "difference_models.h"

namespace bf16codecs::fuzz {
namespace {

constexpr unsigned kMostSections = 3;

// A block of the difference mode, and the choices of its encoder.
struct DifferenceBlock {
  uint64_t first = 0;
  unsigned groups_log2 = 0;
  grid::RowScales rows;
  Bytes base, items;
};

// A model as it stands in a frame of whole sections.
struct ModelBytes {
  Layout layout;
  unsigned sections;
  Bytes bytes;

  uint64_t items() const { return sections * grid::kSectionItems; }
  delta::Model read(uint64_t first, uint64_t last) const {
    return delta::Model::read(layout, bytes.data(), bytes.size(), items(), first, last);
  }
  delta::Model read() const { return read(0, items()); }
};

// Where a block is, what its rows are, and how many items it has.
DifferenceBlock read_block(Reader& in, unsigned sections, const delta::Model& model, size_t& n) {
  DifferenceBlock block;
  const uint8_t kind = in.u8(), head = in.u8();
  const uint32_t position = in.u32();
  // Seldom several strips, or too few items.
  n = 1 + in.u16() % (kind % 8 == 0 ? 10'000 : kind % 8 == 1 ? 200u : 1000u);
  block.first =
      position % sections * grid::kSectionItems + position / 4 % (grid::kSectionItems - n + 1);
  block.groups_log2 = head % 3;
  block.rows = read_rows(in, kind / 8 % 12, head >= 128,
                         grid::rows_in(model.section(block.first), block.first, n));
  return block;
}

// Items of the base: any, or of a few exponents; and others near them, of other signs, or any.
void fill_items(Reader& in, size_t width, size_t n, DifferenceBlock& block) {
  const uint8_t kind = in.u8(), bits = in.u8() % 64, any = in.u8(), exponent = in.u8();
  test::Random random(in.u16());
  block.base.resize(width * n);
  block.items.resize(width * n);
  const unsigned top = 8 * static_cast<unsigned>(width) - 1;
  const uint64_t all = ~uint64_t{0} >> (63 - top);
  for (size_t i = 0; i < n; ++i) {
    uint64_t base = random.next() & all;
    if (kind % 4 == 0 && in.left() != 0) {
      base = uint64_t{in.rest()[random.below(in.left())]} << (top - 7);
    }
    if (kind % 4 == 1) base = (base & all >> 3) | uint64_t{exponent} % 8 << (top - 2);
    const uint64_t change = random.next() & ((uint64_t{1} << bits) - 1);
    uint64_t item = random.below(2) == 0 ? base + change : base - change;
    if (kind / 4 % 4 == 0 && random.below(4) == 0) item ^= uint64_t{1} << top;
    if (random.below(256) < any) item = random.next();
    for (size_t byte = 0; byte < width; ++byte) {
      block.base[width * i + byte] = static_cast<uint8_t>(base >> 8 * byte);
      block.items[width * i + byte] = static_cast<uint8_t>(item >> 8 * byte);
    }
  }
}

struct Decoded {
  std::string error;
  Bytes items;

  bool operator==(const Decoded& other) const {
    return error == other.error && (!error.empty() || items == other.items);
  }
};

// Decodes with what a reader of this block alone reads of the model.
Decoded decode(const ModelBytes& model, const Bytes& payload, const std::vector<Bytes>& low,
               const DifferenceBlock& block, bool in_place) {
  const size_t width = model.layout.planes(), size = block.base.size();
  const std::unique_ptr<uint8_t[]> bytes(new uint8_t[payload.size()]), out(new uint8_t[size]),
      base(new uint8_t[in_place ? 0 : size]);
  std::copy(payload.begin(), payload.end(), bytes.get());
  uint8_t* const of_block = in_place ? out.get() : base.get();
  std::copy(block.base.begin(), block.base.end(), of_block);
  Decoded result;
  size_t at = 0;
  result.error = error_of([&] {
    const delta::Model part = model.read(block.first, block.first + size / width);
    delta::Reader reader(part, of_block, bytes.get(), payload.size(), block.first, size / width);
    while (const size_t n = reader.next()) {
      const uint8_t* planes[kMaxItemSize];
      for (size_t k = 0; k < low.size(); ++k) planes[k] = low[k].data() + at;
      reader.decode(planes, out.get() + width * at);
      at += n;
    }
  });
  if (!result.error.empty()) return result;
  CHECK(width * at == size);
  result.items.assign(out.get(), out.get() + size);
  return result;
}

// Decodes with every instruction set.
Decoded decode_alike(const ModelBytes& model, const Bytes& payload, const std::vector<Bytes>& low,
                     const DifferenceBlock& block) {
  use(kScalarKernels);
  const Decoded scalar = decode(model, payload, low, block, false);
  CHECK(decode(model, payload, low, block, true) == scalar);
  for (const Kernels* set : instruction_sets()) {
    if (set == &kScalarKernels) continue;
    use(*set);
    CHECK(decode(model, payload, low, block, false) == scalar);
    CHECK(decode(model, payload, low, block, true) == scalar);
  }
  return scalar;
}

// Its payload by the core's encoder, with any model and choices, and the low bytes of its numbers;
// empty if it has too few items.
Bytes encode(const delta::Model& model, const DifferenceBlock& block, std::vector<Bytes>& low) {
  const size_t width = model.layout().planes(), n = block.items.size() / width;
  low.assign(model.section(block.first).low, Bytes(n));
  uint8_t* at[kMaxItemSize];
  for (size_t k = 0; k < low.size(); ++k) at[k] = low[k].data();
  Bytes payload(10 * n + kPayloadSlack);
  Scratch scratch;
  payload.resize(delta::encode_block(model, {block.rows, block.groups_log2}, block.base.data(),
                                     block.items.data(), block.first, n, scratch, at,
                                     payload.data(), payload.size()));
  return payload;
}

// Encodes with every instruction set.
Bytes encode_alike(const ModelBytes& model, const DifferenceBlock& block, std::vector<Bytes>& low) {
  use(kScalarKernels);
  const Bytes scalar = encode(model.read(), block, low);
  for (const Kernels* set : instruction_sets()) {
    if (set == &kScalarKernels) continue;
    use(*set);
    std::vector<Bytes> other;
    CHECK(encode(model.read(), block, other) == scalar);
    CHECK(other == low);
  }
  return scalar;
}

// What the core makes of it. It chooses rows only with a model that it fitted.
void check_encoder(const ModelBytes& bytes, const DifferenceBlock& block) {
  const size_t width = bytes.layout.planes(), n = block.items.size() / width;
  use(*instruction_sets().back());
  const delta::Model model = bytes.read();
  const grid::Grid& grid = model.section(block.first);
  if (grid.row_length != 0 || grid.period != 0) return;
  std::vector<Bytes> low(model.section(block.first).low, Bytes(n));
  uint8_t* at[kMaxItemSize];
  for (size_t k = 0; k < low.size(); ++k) at[k] = low[k].data();
  Bytes payload(width * n + 1000);
  Scratch scratch;
  payload.resize(delta::encode(model, block.base.data(), block.items.data(), block.first, n,
                               n % 2 == 0, scratch, at, payload.data(), payload.size()));
  if (payload.empty()) return;
  const Decoded decoded = decode_alike(bytes, payload, low, block);
  CHECK(decoded.error.empty() && decoded.items == block.items);
}

void test_block(const ModelBytes& bytes, const delta::Model& model, Reader& in) {
  const uint8_t damages = in.u8() % 8;
  test::Random random(in.u16());
  size_t n = 0;
  DifferenceBlock block = read_block(in, bytes.sections, model, n);
  fill_items(in, bytes.layout.planes(), n, block);
  std::vector<Bytes> low;
  Bytes payload = encode_alike(bytes, block, low);
  if (damages == 7) {  // the input is a payload itself
    decode_alike(bytes, Bytes(in.rest(), in.rest() + in.left()), low, block);
    return;
  }
  const Decoded sound = decode_alike(bytes, payload, low, block);
  if (payload.empty()) {
    CHECK(!sound.error.empty());
    return;
  }
  CHECK(sound.error.empty());
  CHECK(sound.items == block.items);
  if (damages == 0) return check_encoder(bytes, block);
  damage(payload, damages, random);
  if (random.below(4) == 0) {
    for (Bytes& plane : low) plane[random.below(n)] ^= random.byte();
  }
  decode_alike(bytes, payload, low, block);
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
  DifferenceModelWriter writer(in, bytes.layout);
  for (unsigned i = 0; i < bytes.sections; ++i) writer.put_section();
  bytes.bytes = writer.finish();

  delta::Model model;
  if (!error_of([&] { model = bytes.read(); }).empty()) return 0;
  bytes.bytes = model.write();
  CHECK(bytes.read().write() == bytes.bytes);
  test_block(bytes, model, in);
  return 0;
}
