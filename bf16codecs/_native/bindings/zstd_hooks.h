#pragma once

#include "options.h"

namespace bf16codecs {

// Zstandard as numcodecs has it, called with the GIL held; numcodecs releases it while it works.
Zstd zstd_hooks();

}  // namespace bf16codecs
