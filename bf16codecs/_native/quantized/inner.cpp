#include "quantized/inner.h"

#include <algorithm>
#include <vector>

#include "quantized/kinds.h"
#include "quantized/values.h"

namespace bf16codecs::quantized {
namespace {

constexpr Layout kNumbers{DType::float32, false};
constexpr size_t kGroupsTried = 8, kMostAtOnce = 64;
// Of fewer numbers, the inner grid's own fields take what it saves.
constexpr size_t kLeastNumbers = 64;

// Whether some groups of numbers, spread over all, have a scale.
bool explains(const InnerKind& inner, const std::vector<float>& numbers) {
  const size_t width = std::min<size_t>(inner.width, kMostAtOnce);
  const size_t groups = numbers.size() / width, step = groups / kGroupsTried + 1;
  size_t failures = kGroupsTried;
  ScaleFinder finder(inner.kind, Precision::binary32, failures);
  unsigned found = 0, tried = 0;
  for (size_t g = 0; g < groups; g += step) {
    const float* const group = numbers.data() + width * g;
    if (std::count(group, group + width, 0.0f) + 2 > static_cast<ptrdiff_t>(width)) continue;
    ++tried;
    found += finder.find(group, width, true) != 0 ? 1 : 0;
    if (2 * found + 1 < tried) return false;
  }
  return found > 1 && 4 * found >= 3 * tried;
}

}  // namespace

std::optional<Found> find_inner(const uint8_t* numbers, size_t n) {
  if (n < kLeastNumbers) return std::nullopt;
  std::vector<float> values(n);
  load_values(kNumbers, numbers, n, values.data());
  for (const InnerKind& inner : inner_kinds()) {
    if (!explains(inner, values)) continue;
    const Kind& kind = inner.kind;
    return Found{{kind.levels, Rounding::direct, kind.label, {inner.width, 1, inner.width}}, kind};
  }
  return std::nullopt;
}

}  // namespace bf16codecs::quantized
