// The HDF5 filter as libhdf5 calls it, in both directions, with any chunk and any cd_values.
//
// An input is one byte with flags and the number of values, the values, and the chunk.

#include "hdf5/filter.h"

#include <cstdlib>
#include <cstring>

#include "core.h"
#include "filter_input.h"
#include "hdf5/abi.h"
#include "hdf5/settings.h"

namespace bf16codecs::fuzz {
namespace {

// What libhdf5 keeps of a chunk: the filter may replace the memory, which is from malloc().
struct Chunk {
  explicit Chunk(const uint8_t* bytes, size_t n) : room(n), memory(std::malloc(n)) {
    if (n != 0) std::memcpy(memory, bytes, n);
  }
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;
  ~Chunk() { std::free(memory); }

  bool holds(const uint8_t* bytes, size_t n) const {
    return n == 0 || std::memcmp(memory, bytes, n) == 0;
  }

  size_t room;
  void* memory;
};

// Returns the filter's result; after a failure the chunk has to be as it was.
size_t apply(unsigned flags, const FilterInput& input, size_t size, Chunk& chunk) {
  const void* const before = chunk.memory;
  const size_t room = chunk.room;
  const size_t result = hdf5_filter(flags, input.values.size(), input.values.data(), size,
                                    &chunk.room, &chunk.memory);
  if (result == 0) CHECK(chunk.memory == before && chunk.room == room);
  CHECK(result <= chunk.room);
  return result;
}

void test_decode(const FilterInput& input) {
  GrowingIndex growing;
  if (is_growing(input.chunk, input.size) &&
      error_of([&] { growing = read_growing(input.chunk, input.size); }).empty() &&
      growing.raw_size() > kMostDecoded) {
    return;
  }
  FrameIndex index;
  if (is_whole_frame(input.chunk, input.size, index) && index.header.raw_size > kMostDecoded) {
    return;
  }
  Chunk chunk(input.chunk, input.size);
  const size_t result = apply(kHdf5Reverse, input, input.size, chunk);
  if (result == 0) return CHECK(chunk.holds(input.chunk, input.size));
  // libhdf5 takes it that so many bytes are there.
  CHECK(result >= hdf5_chunk_size(input.values.size(), input.values.data()));
}

void test_encode(const FilterInput& input) {
  Chunk chunk(input.chunk, input.size);
  const size_t size = apply(input.is_optional ? kHdf5Optional : 0, input, input.size, chunk);
  if (size == 0) return CHECK(chunk.holds(input.chunk, input.size));
  // As libhdf5 stores it: with nothing after its end.
  Chunk stored(static_cast<const uint8_t*>(chunk.memory), size);
  CHECK(apply(kHdf5Reverse, input, size, stored) == input.size);
  CHECK(stored.holds(input.chunk, input.size));
}

}  // namespace
}  // namespace bf16codecs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bf16codecs::fuzz;
  use(*instruction_sets().back());
  const FilterInput input(data, size);
  if (input.is_decoding) {
    test_decode(input);
  } else {
    test_encode(input);
  }
  return 0;
}
