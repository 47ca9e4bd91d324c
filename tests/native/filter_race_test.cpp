// The HDF5 filter in many threads at once: libhdf5 has a lock around it, but several copies of that
// library, or a program that calls the filter itself, have none in common. Built with
// BF16CODECS_SANITIZE=thread, ThreadSanitizer watches.

#include <algorithm>
#include <barrier>
#include <cstdlib>
#include <thread>

#include "check.h"
#include "format/names.h"
#include "hdf5/abi.h"
#include "hdf5/expected.h"
#include "hdf5/filter.h"

namespace bf16codecs::test {
namespace {

constexpr unsigned kThreads = 4, kRounds = 20;

// A chunk as libhdf5 hands it over, in memory from malloc().
struct Chunk {
  size_t room, size;
  void* memory;

  explicit Chunk(const Bytes& bytes)
      : room(bytes.size()), size(bytes.size()), memory(std::malloc(bytes.size())) {
    std::copy(bytes.begin(), bytes.end(), data());
  }
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;
  ~Chunk() { std::free(memory); }

  uint8_t* data() const { return static_cast<uint8_t*>(memory); }
  size_t apply(unsigned flags, const std::vector<unsigned>& values) {
    const size_t result = hdf5_filter(flags, values.size(), values.data(), size, &room, &memory);
    if (result != 0) size = result;
    return result;
  }
};

void round_trip(const Bytes& raw, const std::vector<unsigned>& values) {
  Chunk chunk(raw);
  CHECK(chunk.apply(0, values) != 0);
  if (chunk.size > 100) {
    Chunk damaged(Bytes(chunk.data(), chunk.data() + chunk.size / 2));
    CHECK(damaged.apply(kHdf5Reverse, values) == 0);  // and says so on stderr
  }
  CHECK(chunk.apply(kHdf5Reverse, values) == raw.size());
  CHECK(std::equal(raw.begin(), raw.end(), chunk.data()));
}

void test_filter() {
  Random random(3);
  Bytes raw = random.bytes(40000);
  for (size_t i = 1; i < raw.size(); i += 2) raw[i] = static_cast<uint8_t>(60 + raw[i] % 4);
  const unsigned arithmetic = static_cast<unsigned>(Codec::arithmetic);
  const std::vector<std::vector<unsigned>> settings = {
      {static_cast<unsigned>(Codec::huffman)}, {arithmetic}, {arithmetic, 0, 0, kBest}};
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned round = 0; round < kRounds; ++round) {
        start.arrive_and_wait();
        round_trip(raw, settings[(t + round) % settings.size()]);
        if (t == 0) forget_datasets();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("filter: %u threads, %u rounds\n", kThreads, kRounds);
}

}  // namespace
}  // namespace bf16codecs::test

int main() {
  bf16codecs::test::test_filter();
  return 0;
}
