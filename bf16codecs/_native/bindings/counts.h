#pragma once

#include <nanobind/nanobind.h>

namespace bf16codecs {

// Publishes the functions that count bytes and words; bf16codecs/_core.pyi declares them.
void publish_counts(nanobind::module_& module);

}  // namespace bf16codecs
