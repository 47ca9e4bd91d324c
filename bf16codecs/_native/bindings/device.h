#pragma once

#include <nanobind/nanobind.h>

namespace bf16codecs {

// Publishes DevicePlan, which plans the work of a GPU; bf16codecs/_core.pyi declares it.
void publish_device(nanobind::module_& m);

}  // namespace bf16codecs
