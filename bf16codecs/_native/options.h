#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "format/layout.h"
#include "format/names.h"

namespace bf16codecs {

// Zstandard, provided by the caller: the core links no libzstd.
struct Zstd {
  // Compresses n bytes to out; returns the size, or 0 if it is more than capacity.
  std::function<size_t(const uint8_t* plane, size_t n, int level, uint8_t* out, size_t capacity)>
      compress;
  // Decompresses one Zstandard frame whose content is n bytes. Throws CorruptDataError.
  std::function<void(const uint8_t* payload, size_t size, uint8_t* plane, size_t n)> decompress;
};

// Of a base, which need not be given. One without bytes is not none.
using OptionalBytes = std::optional<std::span<const uint8_t>>;

inline constexpr unsigned kMaxSteps = kNoParent - 1;

struct EncodeOptions {
  Codec codec = Codec::huffman;
  Layout layout;
  int level = 0;  // of the arithmetic codec, or of Zstandard
  bool has_checksums = true;
  unsigned block_log2 = 18;
  bool may_drop_steps = false;  // encode without versions where that is smaller
  unsigned steps = 1;           // versions, at most kMaxSteps
  bool has_base = false;        // the frame is of differences to a base outside
  size_t row = 0;               // items in a row of the array; 0: not known
  bool may_use_grids = true;    // look for weights that were quantised once
  const Zstd* zstd = nullptr;

  bool is_best() const { return codec == Codec::arithmetic && level == kBest; }
};

}  // namespace bf16codecs
