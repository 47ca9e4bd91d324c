#pragma once

#include <nanobind/nanobind.h>

namespace bf16codecs {

// Gives the module the names and numbers of format/names.h, and what else of the format Python
// code would repeat: bf16codecs/_core.pyi declares them.
void publish_names(nanobind::module_& module);

}  // namespace bf16codecs
