#pragma once

// Blocks of a frame as jobs for a device (cuda/job.h).

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "codec/device_grid.h"
#include "codec/frame_model.h"
#include "cuda/job.h"
#include "format/frame.h"

namespace bf16codecs {

// Addresses on the device; 0 where there is nothing.
struct DeviceAddresses {
  uint64_t payload = 0;  // of the first block
  uint64_t items = 0;    // where its items go
  uint64_t base = 0;     // the items with the same indices in the base
  uint64_t model = 0;    // what DevicePlan::model() gave for this address
};

// What decoding blocks needs on a device: the memory of a warp beside the blocks, in bytes, and the
// kernels, a combination of cuda::Kernel.
struct DeviceNeeds {
  size_t scratch = 0;
  uint8_t kernels = 0;
};

class DevicePlan {
 public:
  // For blocks [first, last) of `index`, all of one version, whose bytes are `payload`: null if the
  // host does not have them, which it needs for blocks in the grid mode. The plan keeps a reference
  // to `index`. Throws CorruptDataError for a damaged model.
  DevicePlan(const FrameIndex& index, size_t first, size_t last, const uint8_t* payload);

  // Whether the blocks have a base: in the frame, or outside of it.
  bool needs_base() const;

  // The bytes after the items, if the last block is the frame's last one.
  const std::vector<uint8_t>& tail() const;

  // Throws TruncatedDataError or std::invalid_argument unless the blocks have `size` bytes.
  void check_payload(size_t size) const;

  // What the blocks, whose bytes are `payload`, need to be decoded to this address; nothing if the
  // device cannot decode all of them. Damaged blocks are left to the host as well, which reports
  // what is wrong.
  std::optional<DeviceNeeds> needs(const uint8_t* payload, uint64_t items) const;

  // The most memory that any block of this size needs.
  size_t most_scratch() const;

  // The part of the version's model that the jobs need, and their grids, to be put at this address;
  // empty if they need none.
  std::vector<uint8_t> model(uint64_t address) const;
  // The size of that part, which does not depend on the address.
  size_t model_size() const;

  std::vector<cuda::Job> jobs(const DeviceAddresses& at) const;

 private:
  template <typename Function>
  void for_each_section(Function function) const;
  void read_grids(const uint8_t* payload);
  size_t sections_size() const;
  uint8_t kernels_for(size_t block, const PlaneView planes[], uint64_t items) const;
  uint8_t kernels_for(const DeviceGrid& grid) const;
  bool is_usual_difference(size_t block, const PlaneView planes[]) const;

  const FrameIndex& index_;
  size_t first_, last_;
  FrameModel model_;
  std::map<size_t, DeviceGrid> grids_;  // by block
};

}  // namespace bf16codecs
