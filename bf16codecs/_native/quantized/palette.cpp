#include "quantized/palette.h"
#include "scattered.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace bf16codecs::quantized {
namespace {

// Adds a number that is not yet among the levels. Returns false if there are too many.
bool add_level(float value, std::vector<float>& levels) {
  uint32_t has = 0;
  for (const float level : levels)
    has |= std::bit_cast<uint32_t>(level) == std::bit_cast<uint32_t>(value) ? 1 : 0;
  if (has != 0) return true;
  if (levels.size() == kMostSearched || !std::isfinite(value)) return false;
  levels.push_back(value);
  return true;
}

}  // namespace

std::optional<Found> find_palette(const Array& array) {
  constexpr size_t kSampled = 4096;
  std::vector<float> levels;
  for (size_t k = 0; k < std::min(kSampled, array.n); ++k) {
    float value;
    array.load(scattered_place(k, array.n), 1, &value);
    if (!add_level(value, levels)) return std::nullopt;
  }
  // Some levels may be rare.
  for (size_t i = 0; i < array.n; i += kSampled) {
    float values[kSampled];
    const size_t n = std::min(kSampled, array.n - i);
    array.load(i, n, values);
    for (size_t k = 0; k < n; ++k) {
      if (!add_level(values[k], levels)) return std::nullopt;
    }
  }
  if (levels.size() < 2) return std::nullopt;
  std::sort(levels.begin(), levels.end(), [](float a, float b) {
    return a < b || (a == b && std::signbit(a) && !std::signbit(b));
  });
  const float most = std::max(std::fabs(levels.front()), std::fabs(levels.back()));
  int exponent;
  std::frexp(most, &exponent);
  Found found;
  found.kind.fixed_scale = std::ldexp(1.0f, exponent);
  found.kind.label = found.grid.label = Label::palette;
  Levels& table = found.kind.levels;
  table.family = Family::table;
  table.count = static_cast<unsigned>(levels.size());
  for (size_t i = 0; i < levels.size(); ++i) {
    table.table[i] = levels[i] / found.kind.fixed_scale;
    if (levels[i] != 0 && !is_within(std::fabs(table.table[i]), kLeastLevel, kMostLevel))
      return std::nullopt;
  }
  if (!is_within(found.kind.fixed_scale, kLeastScale, kMostScale)) return std::nullopt;
  found.grid.levels = table;
  found.grid.groups = {kAllItems, 1, kAllItems};
  return found;
}

}  // namespace bf16codecs::quantized
