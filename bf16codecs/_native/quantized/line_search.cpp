#include "quantized/line_search.h"

#include "quantized/codes.h"

namespace bf16codecs::quantized {

void LineSearch::find(Section& section, float* scales, float* offsets) {
  together_.find(section, scales, offsets);
  for (size_t g = 0; g < section.groups(); ++g) {
    if (scales[g] != 0) continue;
    section.collect(g, values_);
    const ScaleAndOffset numbers = finder_.find(values_.data(), values_.size());
    scales[g] = numbers.scale, offsets[g] = numbers.offset;
    if (numbers.scale == 0) continue;
    find_codes(kind_.levels, precision_, values_, numbers, codes_);
    section.set_codes(g, codes_.data());
  }
}

}  // namespace bf16codecs::quantized
