#pragma once

#include <nanobind/nanobind.h>

namespace bf16codecs {

// Publishes the run-length functions; bf16codecs/_core.pyi declares them.
void publish_run_length(nanobind::module_& module);

}  // namespace bf16codecs
