#pragma once

// The digest by which a base is recognized (docs/format_differences.md, "The base field").

#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/frame.h"

namespace bf16codecs {

struct BaseDigest {
  uint64_t digest = 0;           // of the base's bytes
  std::vector<uint32_t> blocks;  // checksums of its blocks
};

// Computes both, of a base of header.raw_size bytes.
BaseDigest digest_base(const Header& header, const uint8_t* base);

}  // namespace bf16codecs
