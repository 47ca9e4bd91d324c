// For the filter's target: as a rule the chunk to be decoded is mutated as a frame.

#include "filter_input.h"
#include "frame_mutator.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  using namespace bf16codecs::fuzz;
  const FilterInput input(data, size);
  if (!input.is_decoding || seed % 4 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const size_t head = size - input.size;
  return head + mutate_frame(data + head, input.size, max_size - head, seed / 4);
}
