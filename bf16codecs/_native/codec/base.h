#pragma once

// How a base is known again (docs/format_differences.md, "The base field").

#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/frame.h"

namespace bf16codecs {

struct BaseDigest {
  uint64_t digest = 0;           // of its bytes
  std::vector<uint32_t> blocks;  // checksums
};

// Of a base of raw_size bytes.
BaseDigest digest_base(const Header& header, const uint8_t* base);

}  // namespace bf16codecs
