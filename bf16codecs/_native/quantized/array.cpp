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

}  // namespace bf16codecs::quantized
