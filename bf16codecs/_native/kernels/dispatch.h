#pragma once

// The kernel sets to choose from.

#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace bf16codecs {

// The kernel sets that this build has and this processor runs, the scalar one first and the fastest
// one last; and their names.
std::vector<const Kernels*> available_kernels();
std::vector<std::string> available_isas();

}  // namespace bf16codecs
