#pragma once

// Compiled kernels, as NVRTC makes them: which there are, and what parameters they take.

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace stand_in {

struct Parameter {
  std::size_t offset, size;
};
using Kernels = std::map<std::string, std::vector<Parameter>>;

struct Image {
  unsigned arch = 0;  // 90 for sm_90; 0 in PTX, which the driver compiles for any
  Kernels kernels;
};

// Nothing if it is neither a cubin nor PTX. A cubin is read as far as its tables say it goes.
std::optional<Image> read_image(const char* data);

}  // namespace stand_in
