#pragma once

#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace bf16codecs {

// What this build has and this processor runs, the plainest first; and the names.
std::vector<const Kernels*> available_kernels();
std::vector<std::string> available_isas();

}  // namespace bf16codecs
