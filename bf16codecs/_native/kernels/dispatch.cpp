#include "dispatch.h"

namespace bf16codecs {

const Kernels& kernels() { return kScalarKernels; }

std::vector<std::string> available_isas() { return {"scalar"}; }

}  // namespace bf16codecs
