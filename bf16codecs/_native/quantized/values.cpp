#include "quantized/values.h"

#include "kernels/kernels.h"

namespace bf16codecs::quantized {

void load_values(const Layout& layout, const uint8_t* items, size_t n, float* values) {
  kernels().quantized->load(container_of(layout), items, n, values);
}

}  // namespace bf16codecs::quantized
