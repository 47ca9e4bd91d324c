// Speeds of the kernels of the difference mode, in cache, in the thread's own processor time: those
// of every instruction set in turns, beside memcpy.
//
//     delta_bench [CLASSES GROUPS]     8 and 16 classes, in 4 groups, by default
//
// Prints the median and the best of all rounds, in GB/s of items of two bytes. Dense numbers are
// those of checkpoints in training, sparse ones those of a model that was fine-tuned a little.

#include <time.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "delta_models.h"
#include "kernels/dispatch.h"

namespace bf16codecs::test {
namespace {

constexpr size_t kItems = size_t{1} << 18, kSteps = kItems / kDeltaStep;
constexpr int kRounds = 15, kCalls = 8;

double processor_time() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Contender {
  std::string name;
  std::function<void()> run;
  std::vector<double> rates{};

  void measure() {
    const double start = processor_time();
    for (int call = 0; call < kCalls; ++call) run();
    rates.push_back(2e-9 * kItems * kCalls / (processor_time() - start));
  }
};

// A set takes turns with the others: a machine that drifts does so for all of them.
void compare(std::vector<Contender> all) {
  for (Contender& c : all) c.run();
  for (int round = 0; round < kRounds; ++round) {
    for (Contender& c : all) c.measure();
  }
  for (Contender& c : all) {
    std::sort(c.rates.begin(), c.rates.end());
    std::printf("  %-24s median %6.2f  best %6.2f\n", c.name.c_str(), c.rates[kRounds / 2],
                c.rates.back());
  }
}

// Weights fall by `slope` eighths of an octave from one entry to the next; r is that of bfloat16.
DeltaModel falling_model(unsigned classes, unsigned slope) {
  std::vector<delta::ClassCode> codes(classes);
  for (unsigned c = 0; c < classes; ++c) {
    codes[c].raw = static_cast<uint8_t>(c % 4);
    for (unsigned j = 0; j < kDeltaEntries; ++j) {
      const int g = static_cast<int>(delta::kMaxWeight - slope * j - c);
      codes[c].weights[j] = static_cast<uint8_t>(std::max(g, 1));
    }
  }
  return DeltaModel(codes);
}

// A block: what is coded, and what it is made of.
struct Block {
  unsigned groups;
  Bytes classes = Bytes(kItems), base = Bytes(2 * kItems), items = Bytes(2 * kItems);
  std::vector<uint16_t> scales = std::vector<uint16_t>(kItems);
  std::vector<uint16_t> numbers = std::vector<uint16_t>(kItems);
  Bytes words = Bytes(2 * kItems + kEncodeMargin);
  std::vector<uint32_t> escapes = std::vector<uint32_t>(kSteps);
  uint32_t x[kMaxLanes] = {};

  // Returns the size of the words, which are at the end of theirs.
  size_t encode(const DeltaKernels& kernels, const DeltaTables& tables) {
    uint8_t* const end = words.data() + words.size();
    DeltaEncoder e{groups, end, {}};
    std::fill_n(e.x, kMaxLanes, kLowestState);
    kernels.encode(e, tables, classes.data(), numbers.data(), kSteps, escapes.data());
    std::copy_n(e.x, kMaxLanes, x);
    return static_cast<size_t>(end - e.words);
  }
  void decode(const DeltaKernels& kernels, const DeltaTables& tables, const Bytes& source) {
    DeltaDecoder d{groups, source.data(), {}};
    std::copy_n(x, kMaxLanes, d.x);
    kernels.decode(d, tables, classes.data(), kSteps, numbers.data(), escapes.data());
  }
};

void compare_coding(const char* name, unsigned slope, unsigned classes, unsigned groups) {
  const DeltaModel model = falling_model(classes, slope);
  Random random(1);
  Block block{groups};
  for (size_t i = 0; i < kItems; ++i) {
    block.classes[i] = static_cast<uint8_t>(random.below(classes));
    block.numbers[i] = model.likely_number(block.classes[i], random);
  }
  const size_t size = block.encode(kScalarDeltaKernels, model.tables());
  Bytes source(block.words.end() - static_cast<std::ptrdiff_t>(size), block.words.end());
  source.resize(2 * kItems);  // a decoder may read more than it uses
  std::printf("%s, %u classes, %u groups, %.2f bits per item\n", name, classes, groups,
              8.0 * static_cast<double>(size) / kItems);
  std::vector<Contender> all;
  Block other = block;
  for (const Kernels* set : available_kernels()) {
    const DeltaKernels& kernels = *set->delta;
    all.push_back({std::string(set->name) + " decode",
                   [&] { block.decode(kernels, model.tables(kernels), source); }});
    all.push_back({std::string(set->name) + " encode",
                   [&] { other.encode(kernels, model.tables(kernels)); }});
  }
  compare(all);
}

// Of normal weights' exponents, and scales around them.
Block near_block(Random& random) {
  Block block{4};
  for (size_t i = 0; i < kItems; ++i) {
    const unsigned exponent =
        120 - static_cast<unsigned>(std::countr_zero(random.next() | 1 << 10));
    const unsigned item = random.below(2) << 15 | exponent << 7 | random.below(128);
    const unsigned next = item + random.below(5) - 2;
    const uint8_t bytes[4] = {static_cast<uint8_t>(item), static_cast<uint8_t>(item >> 8),
                              static_cast<uint8_t>(next), static_cast<uint8_t>(next >> 8)};
    std::copy_n(bytes, 2, &block.base[2 * i]);
    std::copy_n(bytes + 2, 2, &block.items[2 * i]);
    block.scales[i] = static_cast<uint16_t>(16 * 112 + random.below(32));
  }
  return block;
}

// Differences, where the last classes are near ones or none is.
void compare_items(unsigned near) {
  Random random(2);
  Block block = near_block(random);
  DeltaShape shape{128, 4, 16, 8, near, 7, {}};
  for (unsigned i = 0; i < kDeltaPlaces; ++i) shape.class_of[i] = static_cast<uint8_t>(i / 2 % 8);
  std::printf("differences, %s near classes\n", near < 8 ? "with" : "without");
  std::vector<Contender> all;
  const uint8_t* const base = block.base.data();
  const uint16_t* const scales = block.scales.data();
  uint8_t* const classes = block.classes.data();
  for (const Kernels* set : available_kernels()) {
    const DeltaKernels& kernels = *set->delta;
    const std::string name = set->name;
    all.push_back({name + " classify",
                   [&, base] { kernels.classify16(shape, base, scales, kItems, classes); }});
    all.push_back({name + " subtract", [&] {
                     kernels.subtract16(shape, base, block.items.data(), scales, classes, kItems,
                                        block.numbers.data());
                   }});
    all.push_back({name + " add", [&] {
                     kernels.add16(shape, base, block.numbers.data(), scales, classes, kItems,
                                   block.items.data());
                   }});
  }
  compare(all);
}

void compare_all(const std::vector<unsigned>& classes, unsigned groups) {
  const Bytes from(2 * kItems, 1);
  Bytes to(2 * kItems);
  compare({{"memcpy", [&] { std::memcpy(to.data(), from.data(), to.size()); }}});
  for (const unsigned n : classes) {
    compare_coding("dense", 4, n, groups);
    compare_coding("sparse", 24, n, groups);
  }
  for (const unsigned near : {kDeltaClasses, 4u}) compare_items(near);
}

}  // namespace
}  // namespace bf16codecs::test

int main(int argc, char** argv) {
  const bool has_arguments = argc == 3;
  const unsigned classes = has_arguments ? static_cast<unsigned>(std::atoi(argv[1])) : 8;
  const unsigned groups = has_arguments ? static_cast<unsigned>(std::atoi(argv[2])) : 4;
  if (argc != 1 &&
      (!has_arguments || classes - 1 > 15 || (groups != 1 && groups != 2 && groups != 4))) {
    std::fprintf(stderr, "usage: delta_bench [CLASSES GROUPS]\n");
    return 2;
  }
  bf16codecs::test::compare_all(has_arguments ? std::vector{classes} : std::vector{8u, 16u},
                                groups);
  return 0;
}
