// Level "best" beside level "fast" and beside the scale model of format version 1, in turns: whole
// frames in cache, one thread, in its own processor time.
//
//     best_bench FILE ROW [ITEMS [BASE]]   the file's first items as bfloat16, in rows of ROW
//     items,
//                                          and as differences to those of BASE
//
// Prints medians and the range of all rounds, in GB/s of items, and bits per item. BF16CODECS_ISA
// chooses the instruction set.

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "codec.h"
#include "kernels/kernels.h"
#include "scale/model.h"
#include "threads/pool.h"

namespace bf16codecs {
namespace {

constexpr int kRounds = 15;
constexpr double kLeastSeconds = 0.02;  // of a measurement

double processor_time() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Rates {
  std::vector<double> all;

  void measure(size_t bytes, const std::function<void()>& function) {
    int calls = 0;
    const double start = processor_time();
    double seconds = 0;
    for (; seconds < kLeastSeconds; seconds = processor_time() - start, ++calls) function();
    all.push_back(static_cast<double>(bytes) * calls / seconds / 1e9);
  }
  void print() {
    std::sort(all.begin(), all.end());
    std::printf(" %6.2f (%.2f-%.2f)", all[all.size() / 2], all.front(), all.back());
  }
};

// One of the contenders: what encodes and decodes, and the size of what it encoded.
struct Contender {
  const char* name;
  std::function<size_t()> encode;
  std::function<void()> decode;
  size_t size = 0;
  Rates encoding{}, decoding{};
};

struct Frame {
  std::vector<uint8_t> bytes;
  size_t size = 0;
};

// What is measured: items, and perhaps a base.
struct Data {
  std::vector<uint8_t> raw, base;
  size_t row;
};

Contender of_level(const char* name, int level, bool with_base, const Data& data, Frame& frame,
                   std::vector<uint8_t>& decoded) {
  EncodeOptions options;
  options.codec = Codec::arithmetic;
  options.level = level;
  options.row = data.row;
  options.has_base = with_base;
  frame.bytes.resize(encode_room(data.raw.size(), options));
  const uint8_t* const base = with_base ? data.base.data() : nullptr;
  return {name,
          [&data, &frame, options, base] {
            return frame.size =
                       encode(data.raw.data(), data.raw.size(), options, base, frame.bytes.data());
          },
          [&data, &frame, &decoded, base] {
            const FrameIndex index = read_index(frame.bytes.data(), frame.size);
            if (base != nullptr) check_base(index, base, data.base.size());
            decode_frame(index, frame.bytes.data() + index.offsets[0], nullptr, base,
                         decoded.data());
          }};
}

// The scale model by itself: its frames are not written where tiles are as small.
struct ScaleModel {
  static constexpr size_t kBlock = size_t{1} << 18;

  const std::vector<uint8_t>& raw;
  size_t row;
  Layout layout{};
  scale::Model model{};
  std::vector<std::vector<uint8_t>> payloads{};
  std::vector<uint8_t> planes = std::vector<uint8_t>(2 * kBlock + 64);

  size_t encode() {
    const size_t n = raw.size() / 2;
    model = scale::Model::fit(layout, raw.data(), n, row);
    size_t size = model.write().size();
    payloads.clear();
    for (size_t first = 0; first < n; first += kBlock) {
      const size_t count = std::min(kBlock, n - first);
      std::vector<uint8_t> payload(2 * count + (size_t{1} << 16));
      payload.resize(scale::encode(model, raw.data() + 2 * first, first, count, payload.data(),
                                   payload.size()));
      size += payload.size();
      payloads.push_back(std::move(payload));
    }
    return size;
  }
  void decode() {
    uint8_t* const parts[] = {planes.data(), planes.data() + kBlock + 32};
    const size_t n = raw.size() / 2;
    for (size_t b = 0; b < payloads.size(); ++b) {
      scale::decode(model, payloads[b].data(), payloads[b].size(), b * kBlock,
                    std::min(kBlock, n - b * kBlock), parts);
    }
  }
};

bool compare(const Data& data) {
  constexpr size_t kFrames = 4;
  const std::vector<uint8_t>& raw = data.raw;
  Frame frames[kFrames];
  std::vector<uint8_t> decoded[kFrames];
  for (auto& of : decoded) of.resize(raw.size());
  ScaleModel scale{raw, data.row};
  std::vector<Contender> contenders = {
      of_level("fast", kFast, false, data, frames[0], decoded[0]),
      of_level("best", kBest, false, data, frames[1], decoded[1]),
      {"scale model", [&] { return scale.encode(); }, [&] { scale.decode(); }}};
  const size_t measured = data.base.empty() ? 2 : kFrames;
  if (!data.base.empty()) {
    contenders.pop_back();
    contenders.push_back(of_level("fast, base", kFast, true, data, frames[2], decoded[2]));
    contenders.push_back(of_level("best, base", kBest, true, data, frames[3], decoded[3]));
  }
  for (int round = 0; round < kRounds; ++round) {
    for (Contender& c : contenders) {
      c.encoding.measure(raw.size(), [&] { c.size = c.encode(); });
      c.decoding.measure(raw.size(), c.decode);
    }
  }
  for (Contender& c : contenders) {
    std::printf("%-12s %8.4f bits, encode", c.name,
                16.0 * static_cast<double>(c.size) / static_cast<double>(raw.size()));
    c.encoding.print();
    std::printf(", decode");
    c.decoding.print();
    std::printf("\n");
  }
  return std::all_of(decoded, decoded + measured, [&](const auto& of) { return of == raw; });
}

}  // namespace
}  // namespace bf16codecs

int main(int argc, char** argv) {
  using namespace bf16codecs;
  const auto read = [](const char* path, size_t size) {
    std::vector<uint8_t> bytes(size);
    std::FILE* const file = std::fopen(path, "rb");
    const bool is_read = file != nullptr && std::fread(bytes.data(), 1, size, file) == size;
    if (file != nullptr) std::fclose(file);
    if (is_read) return bytes;
    std::fprintf(stderr, "usage: best_bench FILE ROW [ITEMS [BASE]]: %s is no such file\n", path);
    std::exit(2);
  };
  const size_t items = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : size_t{1} << 18;
  Data data;
  data.raw = read(argc > 2 ? argv[1] : "", 2 * items);
  data.row = std::strtoull(argv[2], nullptr, 10);
  if (argc > 4) data.base = read(argv[4], 2 * items);
  set_num_threads(1);
  std::printf("%s, %zu items, GB/s\n", kernels().name, items);
  const bool exact = compare(data);
  if (!exact) std::fprintf(stderr, "a frame did not come back\n");
  return exact ? 0 : 1;
}
