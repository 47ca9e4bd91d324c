#pragma once

namespace bf16codecs {

// Says on stderr, in one line, what failed and why. Programs print libhdf5's own error stack
// seldom. A line that repeats from chunk to chunk is printed once.
void report(const char* failure, const char* reason) noexcept;

}  // namespace bf16codecs
