#pragma once

// Growing frames, for Python.

#include <nanobind/nanobind.h>

#include "bindings/buffers.h"

namespace bf16codecs {

// Decodes the versions that are there, or, if `is_padded`, gives what the growing frame decodes to
// as a whole. Python's lock is held.
nanobind::bytes decode_growing_bytes(const Source& frame, bool is_padded);
void decode_growing_into(const Source& frame, const Target& out, bool is_padded);

// bf16codecs.inspect()
nanobind::dict inspect_growing(const Source& frame);

// Publishes the class of directories, and what writes them.
void publish_growing(nanobind::module_& module);

}  // namespace bf16codecs
