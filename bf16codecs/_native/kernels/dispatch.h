#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace bf16codecs {

// The instruction sets that this build has and this processor runs, the plainest first.
std::vector<std::string> available_isas();

}  // namespace bf16codecs
