#pragma once

// Blocks in the grid mode as a device decodes them.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "block/block.h"
#include "cuda/job.h"

namespace bf16codecs {

// A block of which the host has decoded all but the symbols.
class DeviceGrid {
 public:
  // Reads a block of n items. Returns nothing if the host has to decode it: if it is damaged, or
  // has symbols that a device does not decode.
  static std::optional<DeviceGrid> read(const Layout& layout, const BlockContext& context,
                                        const uint8_t* block, size_t size, size_t n);

  // Whether a device has to decode the symbols before it can use them.
  bool has_coded_symbols() const { return is_coded(grid_.mode); }

  // The bytes that a job needs, and their number: a cuda::Grid and its numbers, for this address.
  size_t size() const;
  void write(uint64_t address, uint8_t* bytes) const;

 private:
  cuda::Grid grid_{};
  std::vector<float> levels_, scales_, offsets_;
  std::vector<uint8_t> plain_;
};

}  // namespace bf16codecs
