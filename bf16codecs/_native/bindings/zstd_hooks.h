#pragma once

#include "options.h"

namespace bf16codecs {

// Zstandard from numcodecs. Its functions take the GIL, and numcodecs releases it while it works.
Zstd zstd_hooks();

}  // namespace bf16codecs
