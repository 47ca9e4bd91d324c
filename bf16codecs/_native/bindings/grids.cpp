#include "bindings/grids.h"

#include "bindings/buffers.h"
#include "bindings/gil.h"
#include "bindings/names.h"
#include "quantized/describe.h"
#include "quantized/find.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace bf16codecs {
namespace {

// What weights were quantised to, or None.
nb::object find_grid(nb::handle data_object, int dtype, size_t row) {
  const Source data(data_object);
  const Layout layout{number_from("dtype", kDTypeNames, dtype), false};
  std::optional<quantized::Found> found;
  {
    const ReleasedGil released;
    found = quantized::find(layout, data.data(), data.size() / layout.planes(), row);
  }
  if (!found) return nb::none();
  return nb::str(quantized::describe(found->grid, row).c_str());
}

}  // namespace

void publish_grids(nb::module_& module) {
  module.def("find_grid", &find_grid, "data"_a, "dtype"_a, "row"_a = 0);
}

}  // namespace bf16codecs
