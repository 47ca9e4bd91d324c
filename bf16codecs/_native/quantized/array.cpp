#include "quantized/array.h"

#include <algorithm>

#include "quantized/values.h"

namespace bf16codecs::quantized {

void Array::load(size_t first, size_t count, float* values) const {
  load_values(layout, items + layout.planes() * first, count, values);
}

void Array::load(size_t first, size_t step, size_t count, float* values) const {
  if (step == 1) return load(first, count, values);
  const size_t width = layout.planes();
  uint8_t bytes[4];
  for (size_t i = 0; i < count; ++i) {
    std::copy_n(items + width * (first + step * i), width, bytes);
    load_values(layout, bytes, 1, values + i);
  }
}

size_t place(size_t k, size_t count) {
  uint64_t mixed = (k + 1) * 0x9E3779B97F4A7C15;
  mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB;
  const uint64_t spread = (mixed ^ mixed >> 31) >> 32;
  return static_cast<size_t>(spread * std::min<uint64_t>(count, UINT32_MAX) >> 32);
}

}  // namespace bf16codecs::quantized
