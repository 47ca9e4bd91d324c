#pragma once

// Growing frames, for Python.

#include <nanobind/nanobind.h>

#include "bindings/buffers.h"

namespace bf16codecs {

// Decodes the existing versions; if `is_padded`, the missing ones are padding. The caller holds the
// GIL.
nanobind::bytes decode_growing_bytes(const Source& frame, bool is_padded);
void decode_growing_into(const Source& frame, const Target& out, bool is_padded);

// bf16codecs.inspect()
nanobind::dict inspect_growing(const Source& frame);

// Publishes the class of directories, and the functions that write them.
void publish_growing(nanobind::module_& module);

}  // namespace bf16codecs
