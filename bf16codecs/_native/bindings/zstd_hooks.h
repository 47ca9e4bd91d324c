#pragma once

#include "options.h"

namespace bf16codecs {

// Zstandard from numcodecs. It is called with the GIL held, and releases it while it works.
Zstd zstd_hooks();

}  // namespace bf16codecs
