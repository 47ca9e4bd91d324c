#include "difference_models.h"

#include <algorithm>

#include "grid/keys.h"

namespace bf16codecs::fuzz {

using delta::kMaxWeight;

DifferenceModelWriter::DifferenceModelWriter(Reader& in, const Layout& layout)
    : in_(in),
      layout_(layout),
      numbers_(in, grid::KeyFormat(layout).max_scale(), in.u16()),
      random_(in.u16()) {}

void DifferenceModelWriter::put_section() {
  numbers_.put_columns(numbers_.put_grid_head());
  const unsigned relation = in_.u8() % 4 == 0 ? in_.u8() % 3u : 0;
  numbers_.put(range_, static_cast<int>(relation), 0, 2);
  const uint8_t low = in_.u8();
  numbers_.put(range_, low % 4 == 0 ? low / 4 : low % 4 - 1, 0,
               static_cast<int>(layout_.planes()) - 1);
  numbers_.put(range_, in_.u8(), 0, 4);
  const int origin = static_cast<int16_t>(in_.u16());
  numbers_.put(place_, in_.u8() % 4 == 0 ? origin : origin / 64, -16383, 16383);
  const unsigned classes = put_places();
  const auto near = static_cast<int>(relation != 0 ? classes : in_.u8() % (classes + 1));
  numbers_.put_or(range_, near, in_.u8());
  raw_before_ = first_before_ = 0;
  for (unsigned c = 0; c < classes; ++c) put_class(c < static_cast<unsigned>(near));
}

// Returns how many classes they have.
unsigned DifferenceModelWriter::put_places() {
  const uint8_t kind = in_.u8(), likely = in_.u8();
  const unsigned places = 1 + (kind % 4 == 0 ? kind / 4 : kind % 20u);
  numbers_.put_or(range_, static_cast<int>(places) - 1, in_.u16());
  // Seldom more classes than there may be.
  const unsigned most = kDeltaClasses + (kind == 255);
  unsigned classes = 1;
  for (unsigned i = 1; i < places; ++i) {
    const bool is_next = classes < most && random_.below(256) < likely;
    numbers_.put(next_, is_next);
    classes += is_next;
  }
  return classes;
}

void DifferenceModelWriter::put_class(bool is_near) {
  const uint8_t kind = in_.u8();
  if (is_near) {
    const int raw =
        kind % 4 == 0 ? static_cast<int>(random_.below(kMaxDeltaRaw + 1)) : kind / 4 % 4;
    numbers_.put_or(raw_, raw - raw_before_, static_cast<int8_t>(in_.u8()));
    raw_before_ = raw;
  }
  int before = first_before_;
  for (unsigned j = 0; j < kDeltaEntries; ++j) {
    const int g = weight(j, kind / 16);
    numbers_.put_or(frequency_, g - before, g + 1);
    before = g;
    if (j == 0) first_before_ = g;
  }
}

// Falling, of any size, mostly none, or nearly all of it one entry's. An escape needs some.
int DifferenceModelWriter::weight(unsigned entry, unsigned kind) {
  int g = 0;
  if (kind < 4) g = static_cast<int>(kMaxWeight) - static_cast<int>(entry * (1 + kind) * 2);
  if (kind >= 4 && kind < 8) g = static_cast<int>(random_.below(kMaxWeight + 1));
  if (kind >= 8 && kind < 12 && random_.below(4) == 0) g = 96;
  if (kind >= 12) g = random_.below(kDeltaEntries) == 0 ? 96 : static_cast<int>(random_.below(2));
  g = std::clamp(g, 0, static_cast<int>(kMaxWeight));
  return entry == kDeltaEscape && random_.below(64) != 0 ? std::max(1, g) : g;
}

}  // namespace bf16codecs::fuzz
