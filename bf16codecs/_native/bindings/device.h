#pragma once

#include <nanobind/nanobind.h>

namespace bf16codecs {

// Gives a module what plans the work of a device: DevicePlan.
void publish_device(nanobind::module_& m);

}  // namespace bf16codecs
