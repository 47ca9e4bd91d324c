#pragma once

#include <cstddef>

#include "core.h"

namespace bf16codecs::fuzz {

// Changes a growing frame to another, of which most have sizes, checksums and bases that agree.
Bytes mutated_growing(const Bytes& growing, size_t max_size, unsigned seed);

// A frame of one version that needs nothing as the first version of a growing frame; other data as
// they are.
Bytes as_growing(const Bytes& frame, unsigned seed);

}  // namespace bf16codecs::fuzz
