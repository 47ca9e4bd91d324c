#pragma once

#include <nanobind/nanobind.h>

namespace bf16codecs {

// Publishes the names and numbers of format/names.h as attributes of the module, and constants of
// the format that Python code needs. bf16codecs/_core.pyi declares them.
void publish_names(nanobind::module_& module);

}  // namespace bf16codecs
