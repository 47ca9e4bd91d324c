#include "quantized/line_search.h"

#include "kernels/kernels.h"

namespace bf16codecs::quantized {

void LineSearch::set_codes(Section& section, size_t group, const ScaleAndOffset& numbers) {
  const size_t n = values_.size();
  scales_.assign(n, numbers.scale), offsets_.assign(n, numbers.offset);
  symbols_.resize(n), low_.resize(n), codes_.resize(n);
  kernels().quantized->quantize_with_offsets(kind_.levels, precision_, values_.data(),
                                             scales_.data(), offsets_.data(), n,
                                             {symbols_.data(), low_.data()});
  for (size_t i = 0; i < n; ++i)
    codes_[i] = static_cast<uint32_t>(symbols_[i] << kind_.levels.low_bits | low_[i]);
  section.set_codes(group, codes_.data());
}

void LineSearch::find(Section& section, float* scales, float* offsets) {
  for (size_t g = 0; g < section.groups(); ++g) {
    section.collect(g, SIZE_MAX, values_);
    const ScaleAndOffset numbers = finder_.find(values_.data(), values_.size());
    scales[g] = numbers.scale, offsets[g] = numbers.offset;
    if (numbers.scale != 0) set_codes(section, g, numbers);
  }
}

}  // namespace bf16codecs::quantized
