// For targets whose input is a frame.

#include "frame_mutator.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return bf16codecs::fuzz::mutate_frame(data, size, max_size, seed);
}
