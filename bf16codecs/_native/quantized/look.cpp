#include "quantized/look.h"

#include <bit>
#include <cmath>
#include <vector>

#include "format/little_endian.h"
#include "scattered.h"

namespace bf16codecs::quantized {
namespace {

// A number by which significands are told apart.
unsigned significand(const Layout& layout, const uint8_t* item) {
  switch (layout.dtype) {
    case DType::bfloat16:
      return item[0] & 127u;
    case DType::float16:
      return load_le<uint16_t>(item) & 1023u;
    default:
      return (load_le<uint32_t>(item) << 9) * 2654435769u >> 22;
  }
}

// How many of n significands differ in plain weights, by n: in bfloat16 28.2 of 32, with a standard
// deviation of 1.6. Of INT8 in groups of 32 there are 25. The limit below is 3.5 deviations.
std::vector<float> usual_distinct() {
  std::vector<float> usual{0};
  while (usual.size() <= kLookItems) usual.push_back(usual.back() * (127.0f / 128) + 0.993f);
  return usual;
}

}  // namespace

bool is_suspicious(const Array& array, size_t step, size_t places) {
  const size_t width = array.layout.planes(), span = (kLookItems - 1) * step + 1;
  static const std::vector<float> usual = usual_distinct();
  float fewer = 0;
  for (size_t k = 0; k < places; ++k) {
    const uint8_t* const at = array.items + width * scattered_place(k, array.n - span + 1);
    uint64_t seen[16] = {};
    size_t others = 0;
    for (size_t i = 0; i < kLookItems; ++i) {
      const uint8_t* const item = at + width * step * i;
      const unsigned s = significand(array.layout, item);
      const bool is_zero = (item[width - 1] & 127) == 0 && item[0] == 0;
      others += is_zero ? 0 : 1;
      seen[s >> 6] |= uint64_t{is_zero ? 0u : 1u} << (s & 63);
    }
    const size_t words = array.layout.dtype == DType::bfloat16 ? 2 : 16;
    unsigned distinct = 0;
    for (size_t w = 0; w < words; ++w) distinct += static_cast<unsigned>(std::popcount(seen[w]));
    fewer += usual[others] - static_cast<float>(distinct);
    // Of plain weights, most are done after eight places.
    if (k % 8 == 7 && fewer < 1.4f * std::sqrt(static_cast<float>(k + 1))) return false;
  }
  return fewer > 5.6f * std::sqrt(static_cast<float>(places));
}

}  // namespace bf16codecs::quantized
