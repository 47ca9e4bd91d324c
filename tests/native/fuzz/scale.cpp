// The scale model of level "best" alone (docs/format_scale.md): models of several sections with any
// numbers, blocks anywhere in them, and payloads that an encoder wrote with such a model, sound and
// damaged.
//
// An input is numbers, which are coded to a model here.

#include "scale/model.h"

#include <algorithm>

#include "core.h"
#include "grid/grid.h"
#include "grid/keys.h"
#include "model_numbers.h"
#include "planes.h"
#include "scale/tables.h"

namespace bf16codecs::fuzz {
namespace {

constexpr unsigned kMostSections = 3;

// Writes a scale model's numbers.
class ModelWriter {
 public:
  ModelWriter(Reader& in, int max_scale) : in_(in), numbers_(in, max_scale, in.u8()) {}

  void put_section() {
    const uint32_t period = numbers_.put_grid_head();
    const int zero = in_.u16() % 4032;
    numbers_.put(frequencies_, zero, 0, 4031);
    numbers_.put(frequencies_, in_.u16(), 0, 4031 - zero);
    put_curve();
    numbers_.put_columns(period);
  }
  std::vector<uint8_t> finish() { return numbers_.finish(); }

 private:
  void put_curve() {
    int height = 0;
    for (unsigned node = 0; node < scale::kCurveNodes; ++node) {
      const int change = static_cast<int8_t>(in_.u8());
      const int next = std::clamp(height + 4 * change, -255, 255);
      numbers_.put(curve_, next - height, -510, 510);
      height = next;
    }
  }

  Reader& in_;
  NumberWriter numbers_;
  grid::AdaptiveInteger frequencies_, curve_;
};

struct Planes {
  explicit Planes(size_t n) : high(n), low(n) {}
  bool operator==(const Planes&) const = default;

  Bytes high, low;
};

// Items as their leading planes, which is what the model codes.
Planes split(const Layout& layout, const Bytes& items, size_t n) {
  std::vector<Bytes> all(layout.planes(), Bytes(n));
  uint8_t* at[kMaxItemSize];
  for (size_t p = 0; p < all.size(); ++p) at[p] = all[p].data();
  split_planes(layout, items.data(), n, at);
  Planes planes(n);
  planes.high = all[0];
  if (grid::key_planes(layout) == 2) planes.low = all[1];
  return planes;
}

struct Block {
  uint64_t first;
  size_t n;
};

std::string decode(const scale::Model& model, const Bytes& payload, const Block& block,
                   Planes& planes) {
  uint8_t* const at[] = {planes.high.data(), planes.low.data()};
  return error_of(
      [&] { scale::decode(model, payload.data(), payload.size(), block.first, block.n, at); });
}

Bytes encode(const scale::Model& model, const Bytes& items, const Block& block) {
  constexpr size_t kSlack = size_t{1} << 16;  // for a tile's worst case (block/encode_planes.cpp)
  Bytes payload(grid::key_planes(model.layout()) * block.n + kSlack);
  payload.resize(
      scale::encode(model, items.data(), block.first, block.n, payload.data(), payload.size()));
  payload.shrink_to_fit();
  return payload;
}

void test_block(const scale::Model& model, Reader& in, unsigned sections) {
  const unsigned damages = in.u8() % 8;
  const uint32_t seed = in.u32();
  const Layout& layout = model.layout();
  Block block;
  block.n = in.left() / layout.planes();
  block.first = seed % sections * grid::kSectionItems + seed % (grid::kSectionItems - block.n);
  const Bytes rest(in.rest(), in.rest() + in.left());
  if (block.n < scale::kSeedItems) return;

  Planes planes(block.n);
  if (damages == 7) {  // the input is a payload itself
    decode(model, rest, block, planes);
    return;
  }
  Bytes payload = encode(model, rest, block);
  if (payload.empty()) return;
  CHECK(decode(model, payload, block, planes).empty());
  CHECK(planes == split(layout, rest, block.n));
  if (damages == 0) return;
  test::Random random(seed);
  for (unsigned i = 0; i < damages; ++i) {
    payload[random.below(payload.size())] ^= static_cast<uint8_t>(1 << random.below(8));
  }
  decode(model, payload, block, planes);
}

}  // namespace
}  // namespace bf16codecs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bf16codecs;
  using namespace bf16codecs::fuzz;
  use(*instruction_sets().back());
  Reader in(data, size);
  const Layout layout{DType{static_cast<uint8_t>(in.u8() % kDTypes)}, false};
  const unsigned sections = 1 + in.u8() % kMostSections;
  ModelWriter writer(in, grid::KeyFormat(layout).max_scale());
  for (unsigned i = 0; i < sections; ++i) writer.put_section();
  const uint64_t items = sections * grid::kSectionItems;
  const auto read = [&](const Bytes& model) {
    return scale::Model::read(layout, model.data(), model.size(), items, 0, items);
  };

  const Bytes bytes = writer.finish();
  scale::Model model;
  if (!error_of([&] { model = read(bytes); }).empty()) return 0;
  const Bytes again = model.write();
  CHECK(read(again).write() == again);
  test_block(model, in, sections);
  return 0;
}
