#include "delta/fit_grid.h"

#include <bit>
#include <cmath>
#include <limits>

#include "format/little_endian.h"
#include "grid/keys.h"
#include "tiles/fit.h"

namespace bf16codecs::delta {
namespace {

// |x - b| as an item, and something tiny where they are the same: a mean of magnitudes counts what
// is not zero, and here it has to count what did not change.
template <typename Float, typename Bits, unsigned kCut>
void store_differences(const uint8_t* base, const uint8_t* items, size_t n, uint8_t* out) {
  using Item = std::conditional_t<kCut == 16, uint16_t, Bits>;
  for (size_t i = 0; i < n; ++i) {
    const auto load = [&](const uint8_t* from) {
      return std::bit_cast<Float>(
          static_cast<Bits>(Bits{load_le<Item>(from + sizeof(Item) * i)} << kCut));
    };
    const Float difference = std::fabs(load(items) - load(base));
    const bool is_usual = difference > 0 && difference <= std::numeric_limits<Float>::max();
    const Bits bits = is_usual ? std::bit_cast<Bits>(difference) : 0;
    store_le(out + sizeof(Item) * i, static_cast<Item>(bits >> kCut | 1));
  }
}

std::vector<uint8_t> differences(const Layout& layout, const uint8_t* base, const uint8_t* items,
                                 size_t n) {
  std::vector<uint8_t> out(n * layout.planes());
  if (layout.dtype == DType::bfloat16) {
    store_differences<float, uint32_t, 16>(base, items, n, out.data());
  } else if (layout.dtype == DType::float32) {
    store_differences<float, uint32_t, 0>(base, items, n, out.data());
  } else {
    store_differences<double, uint64_t, 0>(base, items, n, out.data());
  }
  return out;
}

}  // namespace

grid::Grid fit_grid(const Layout& layout, const uint8_t* base, const uint8_t* items, uint64_t first,
                    size_t n, size_t row, const grid::Grid* before) {
  const std::vector<uint8_t> bytes = differences(layout, base, items, n);
  const grid::KeyFormat format(layout);
  const tiles::Items of(layout, bytes.data(), first);
  if (row < grid::kMinRow) row = tiles::find_row(of, n);
  return tiles::fit_grid(format, of, first, n, row, before).grid;
}

grid::RowScales fit_rows(const Layout& layout, const grid::Grid& grid, const uint8_t* base,
                         const uint8_t* items, uint64_t first, size_t n) {
  const std::vector<uint8_t> bytes = differences(layout, base, items, n);
  const int exponent = grid.base / static_cast<int>(grid::kScaleSteps);
  return tiles::RowFit(grid::KeyFormat(layout), grid, exponent)
      .fit(tiles::Items(layout, bytes.data(), first), first, n)
      .scales;
}

}  // namespace bf16codecs::delta
