#pragma once

namespace bf16codecs {

// Prints one line on stderr about what failed and why, since programs seldom print libhdf5's error
// stack. A line that repeats from chunk to chunk is printed once.
void report(const char* failure, const char* reason) noexcept;

}  // namespace bf16codecs
