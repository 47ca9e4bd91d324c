#pragma once

#include <nanobind/nanobind.h>

namespace bf16codecs {

// Publishes the function that finds grids; bf16codecs/_core.pyi declares it.
void publish_grids(nanobind::module_& module);

}  // namespace bf16codecs
