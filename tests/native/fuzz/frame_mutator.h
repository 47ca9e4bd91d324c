#pragma once

#include <cstddef>
#include <cstdint>

namespace bf16codecs::fuzz {

// Changes the frame in data[0, size), whatever it is, to another of at most max_size bytes; returns
// its size. Its parts are changed one by one and put together again, so that most mutants have
// sizes and checksums that agree: what lies behind these checks would hardly be reached otherwise.
size_t mutate_frame(uint8_t* data, size_t size, size_t max_size, unsigned seed);

}  // namespace bf16codecs::fuzz
