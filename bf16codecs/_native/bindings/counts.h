#pragma once

#include <nanobind/nanobind.h>

namespace bf16codecs {

// Publishes what counts bytes and words; bf16codecs/_core.pyi declares it.
void publish_counts(nanobind::module_& module);

}  // namespace bf16codecs
