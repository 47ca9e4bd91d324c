#include "bindings/counts.h"

#include <stdexcept>
#include <string>

#include "bindings/buffers.h"
#include "bindings/gil.h"
#include "histogram.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace bf16codecs {
namespace {

using Count = void (*)(const uint8_t*, size_t, size_t, uint64_t*);

template <Count count, size_t kValues>
void counted(nb::handle data_object, nb::handle counts_object, size_t start, size_t stride) {
  const Source data(data_object);
  const Target counts(counts_object);
  if (counts.size() != kValues * sizeof(uint64_t)) {
    throw std::invalid_argument("counts must be " + std::to_string(kValues) + " uint64");
  }
  if (stride < 1 || stride > 8) {
    throw std::invalid_argument("stride must be 1 to 8 bytes, not " + std::to_string(stride));
  }
  if (start >= data.size()) return;
  const ReleasedGil released;
  count(data.data() + start, data.size() - start, stride,
        reinterpret_cast<uint64_t*>(counts.data()));
}

}  // namespace

void publish_counts(nb::module_& module) {
  module.def("count_bytes", &counted<count_bytes, 256>, "data"_a, "counts"_a, "start"_a = 0,
             "stride"_a = 1);
  module.def("count_words", &counted<count_words, 65536>, "data"_a, "counts"_a, "start"_a = 0,
             "stride"_a = 1);
}

}  // namespace bf16codecs
