#include "histogram.h"

#include "format.h"

namespace bf16codecs {
namespace {

constexpr size_t kRuns = 32, kRun = 256;

// Four tables, because a run of one symbol would wait for its own count otherwise.
class Counter {
 public:
  void count(const uint8_t* symbols, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
      const uint64_t eight = load_le<uint64_t>(symbols + i);
      for (unsigned j = 0; j < 8; ++j) ++partial_[j % 4][eight >> (8 * j) & 255];
    }
    for (; i < n; ++i) ++partial_[0][symbols[i]];
  }

  void sum(uint32_t counts[256]) const {
    for (unsigned s = 0; s < 256; ++s) {
      counts[s] = partial_[0][s] + partial_[1][s] + partial_[2][s] + partial_[3][s];
    }
  }

 private:
  uint32_t partial_[4][256] = {};
};

}  // namespace

void histogram(const uint8_t* plane, size_t n, uint32_t counts[256]) {
  Counter counter;
  counter.count(plane, n);
  counter.sum(counts);
}

size_t sample_histogram(const uint8_t* plane, size_t n, uint32_t counts[256]) {
  if (n <= 2 * kRuns * kRun) {
    histogram(plane, n, counts);
    return n;
  }
  Counter counter;
  for (size_t run = 0; run < kRuns; ++run) counter.count(plane + n / kRuns * run, kRun);
  counter.sum(counts);
  return kRuns * kRun;
}

}  // namespace bf16codecs
