// Speeds of whole blocks in cache, in the thread's own processor time: what the codecs cost
// without memory, and without other programs that share it.
//
//     block_bench FILE     the file's first 2^18 items, as bfloat16
//
// Prints the median and the best of 41 measurements, in GB/s of items. BF16CODECS_ISA chooses the
// instruction set.

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "block/block.h"
#include "format/checksum.h"

namespace bf16codecs {
namespace {

constexpr size_t kItems = size_t{1} << 18;
constexpr size_t kBytes = 2 * kItems;
constexpr int kMeasurements = 41, kCalls = 10;

double processor_time() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <typename Function>
void measure(const char* name, Function function) {
  function();
  std::vector<double> seconds;
  for (int i = 0; i < kMeasurements; ++i) {
    const double start = processor_time();
    for (int call = 0; call < kCalls; ++call) function();
    seconds.push_back((processor_time() - start) / kCalls);
  }
  std::sort(seconds.begin(), seconds.end());
  const auto rate = [](double s) { return static_cast<double>(kBytes) / s / 1e9; };
  std::printf("%-20s median %7.2f  best %7.2f\n", name, rate(seconds[kMeasurements / 2]),
              rate(seconds[0]));
}

bool measure_codec(const char* name, Codec codec, const std::vector<uint8_t>& raw) {
  std::vector<uint8_t> block(block_bound(2, kItems)), decoded(kBytes);
  Workspace workspace;
  EncodeOptions options;
  options.codec = codec;
  size_t size = 0;
  measure((std::string(name) + " encode").c_str(), [&] {
    Checksum sum;
    size = encode_block(options, {workspace}, raw.data(), kItems, block.data(), &sum);
  });
  measure((std::string(name) + " decode").c_str(), [&] {
    decode_block(options.layout, {workspace}, block.data(), size, kItems, nullptr, true,
                 decoded.data());
  });
  return decoded == raw;
}

}  // namespace
}  // namespace bf16codecs

int main(int argc, char** argv) {
  using namespace bf16codecs;
  std::vector<uint8_t> raw(kBytes);
  std::FILE* file = argc == 2 ? std::fopen(argv[1], "rb") : nullptr;
  if (file == nullptr || std::fread(raw.data(), 1, kBytes, file) != kBytes) {
    std::fprintf(stderr, "usage: block_bench FILE, of at least %zu bytes\n", kBytes);
    return 2;
  }
  std::fclose(file);
  std::printf("%s, GB/s\n", kernels().name);
  std::vector<uint8_t> copy(kBytes);
  measure("memcpy", [&] { std::memcpy(copy.data(), raw.data(), kBytes); });
  const bool exact = measure_codec("split", Codec::split, raw) &&
                     measure_codec("huffman", Codec::huffman, raw) &&
                     measure_codec("arithmetic", Codec::arithmetic, raw);
  if (!exact) std::fprintf(stderr, "a block did not come back\n");
  return exact ? 0 : 1;
}
