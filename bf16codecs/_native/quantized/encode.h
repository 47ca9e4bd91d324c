#pragma once

// What a block in the grid mode is made of, before its parts are coded.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quantized/find.h"
#include "quantized/format.h"
#include "workspace.h"

namespace bf16codecs::quantized {

struct Parts {
  std::vector<uint8_t> scales;   // little-endian binary32
  std::vector<uint8_t> offsets;  // as scales, empty if the kind has none
  std::vector<uint8_t> plain;    // the items of groups without a scale
  // In the workspace: the packed low bits, and the symbols.
  std::span<const uint8_t> low, symbols;
};

// Finds the scales and codes of a block. Returns false if fewer than a quarter of its items have
// codes, or if a decoder would refuse it.
bool quantize(const Layout& layout, const Found& found, uint64_t first, const uint8_t* items,
              size_t n, Workspace& workspace, Parts& parts);

}  // namespace bf16codecs::quantized
