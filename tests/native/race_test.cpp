// Every codec at once, from a cold start: threads begin each case together, so that whatever the
// core makes at its first use is raced for. Built with BF16CODECS_SANITIZE=thread, ThreadSanitizer
// watches; in any build, all threads must get the same bytes.

#include <algorithm>
#include <barrier>
#include <functional>
#include <string>
#include <thread>

#include "check.h"
#include "codec.h"
#include "codec/growing.h"
#include "digest.h"
#include "histogram.h"
#include "kernels/dispatch.h"
#include "run_length/run_length.h"
#include "threads/pool.h"

namespace bf16codecs::test {
namespace {

constexpr unsigned kThreads = 4;
constexpr size_t kItems = 10000, kRow = 100;

// In place of Zstandard, which the core does not link.
const Zstd kZstd = {[](const uint8_t* plane, size_t n, int, uint8_t* out, size_t capacity) {
                      Bytes encoded(static_cast<size_t>(run_length::bound(n)));
                      const size_t size = run_length::encode(plane, n, encoded.data());
                      if (size > capacity) return size_t{0};
                      std::copy_n(encoded.begin(), size, out);
                      return size;
                    },
                    [](const uint8_t* payload, size_t size, uint8_t* plane, size_t n) {
                      run_length::decode(payload, size, plane, n);
                    }};

// Items near to each other whose scale depends on row and column, and now and then zeros. Another
// version of the same seed differs in low bits.
Bytes items(size_t width, unsigned version) {
  Random random(width);
  Bytes raw(kItems * width);
  for (size_t i = 0; i < kItems; ++i) {
    const bool is_zero = i / 1000 % 3 == 2;
    const uint64_t bits = random.next();
    for (size_t b = 0; b + 1 < width; ++b) {
      raw[i * width + b] = static_cast<uint8_t>(is_zero ? 0 : bits >> 8 * b);
    }
    const unsigned grade = static_cast<unsigned>(i / kRow % 3 + i % kRow % 4 + (bits >> 61));
    raw[i * width + width - 1] = static_cast<uint8_t>(is_zero ? 0 : 0x38 + grade);
    if (!is_zero && i % 5 < version) raw[i * width] ^= 1;
  }
  return raw;
}

struct Versions {
  Bytes first, second, both;

  explicit Versions(size_t width) : first(items(width, 0)), second(items(width, 2)), both(first) {
    both.insert(both.end(), second.begin(), second.end());
  }
};

Bytes encoded(const Bytes& raw, const EncodeOptions& options, const Bytes* base) {
  Bytes frame(static_cast<size_t>(encode_room(raw.size(), options)));
  frame.resize(
      encode(raw.data(), raw.size(), options, base ? base->data() : nullptr, frame.data()));
  return frame;
}

void check_decodes(const FrameIndex& index, const Bytes& frame, const Bytes& raw,
                   const Bytes* base) {
  Bytes out(raw.size());
  const uint8_t* const base_bytes = base ? base->data() : nullptr;
  if (base) check_base(index, base->data(), base->size());
  decode_frame(index, frame.data() + index.offsets[0], &kZstd, base_bytes, out.data());
  CHECK(out == raw);
  if (index.header.has_differences) return;
  const size_t first = index.blocks() / 2, last = first + 1;
  Bytes part(static_cast<size_t>(index.raw_size(first, last)));
  decode_blocks(index, frame.data() + index.offsets[first], first, last, &kZstd, nullptr,
                part.data());
  const auto begin = raw.begin() + static_cast<ptrdiff_t>(first * index.header.block_items() *
                                                          index.header.width());
  CHECK(std::equal(part.begin(), part.end(), begin));
}

// What a thread does in a case; it returns what all threads must get.
using Case = std::function<Bytes()>;

Bytes round_trip(const Bytes& raw, const EncodeOptions& options, const Bytes* base) {
  const Bytes frame = encoded(raw, options, base);
  check_decodes(read_index(frame.data(), frame.size()), frame, raw, base);
  return frame;
}

void add_codec(std::vector<Case>& cases, Codec codec, int level, DType dtype,
               const Versions& versions) {
  EncodeOptions options;
  options.codec = codec;
  options.level = level;
  options.layout = {dtype, false};
  options.block_log2 = 12;
  options.row = kRow;
  options.zstd = &kZstd;
  cases.push_back([&, options] { return round_trip(versions.first, options, nullptr); });
  EncodeOptions with_base = options;
  with_base.has_base = true;
  cases.push_back(
      [&, with_base] { return round_trip(versions.second, with_base, &versions.first); });
  EncodeOptions with_steps = options;
  with_steps.steps = 2;
  cases.push_back([&, with_steps] { return round_trip(versions.both, with_steps, nullptr); });
  if (item_size(dtype) == 1 || codec == Codec::arithmetic) return;
  options.layout.by_byte = true;
  cases.push_back([&, options] { return round_trip(versions.first, options, nullptr); });
}

// A growing frame of two versions, of which the second is coded against the first.
Bytes growing_round_trip(const Versions& versions) {
  EncodeOptions options;
  options.layout = {DType::bfloat16, false};
  options.block_log2 = 12;
  const Bytes first = encoded(versions.first, options, nullptr);
  options.has_base = true;
  const Bytes second = encoded(versions.second, options, &versions.first);
  GrowingIndex index;
  index.dtype = DType::bfloat16;
  index.block_log2 = options.block_log2;
  index.version_size = versions.first.size();
  index.room = 2;
  const uint64_t begin = index.directory_size();
  const GrowingEntry entries[] = {{begin + first.size(), kNoParent},
                                  {begin + first.size() + second.size(), 0}};
  Bytes bytes(static_cast<size_t>(begin));
  write_growing(index, bytes.data());
  for (size_t v = 0; v < 2; ++v) {
    write_growing_entry(entries[v], bytes.data() + kGrowingHeader + v * kGrowingEntry);
  }
  bytes.insert(bytes.end(), first.begin(), first.end());
  bytes.insert(bytes.end(), second.begin(), second.end());

  const GrowingIndex there = read_growing(bytes.data(), bytes.size());
  CHECK(there.entries.size() == 2);
  const std::vector<FrameIndex> frames = read_growing_frames(there, bytes.data(), bytes.size());
  Bytes out(versions.both.size());
  decode_growing(there, frames, bytes.data(), nullptr, out.data());
  CHECK(out == versions.both);
  return bytes;
}

Bytes run_lengths(const Bytes& raw) {
  Bytes encoded(static_cast<size_t>(run_length::bound(raw.size())));
  encoded.resize(run_length::encode(raw.data(), raw.size(), encoded.data()));
  Bytes out(raw.size());
  CHECK(run_length::decoded_size(encoded.data(), encoded.size()) == raw.size());
  run_length::decode(encoded.data(), encoded.size(), out.data(), out.size());
  CHECK(out == raw);
  return encoded;
}

Bytes counts(const Bytes& raw) {
  std::vector<uint64_t> of_bytes(256), of_words(65536);
  count_bytes(raw.data(), raw.size(), 1, of_bytes.data());
  count_words(raw.data(), raw.size(), 2, of_words.data());
  Digest digest;
  digest.update(of_bytes);
  digest.update(of_words);
  return Bytes{static_cast<uint8_t>(digest.value())};
}

Bytes names_of_kernels() {
  const std::string name = kernels().name;
  CHECK(!available_isas().empty() && get_num_threads() != 0);
  return {name.begin(), name.end()};
}

// Each thread's results of all cases. With `together`, threads begin each case at the same time;
// else each goes through them in an order of its own.
std::vector<std::vector<Bytes>> run(const std::vector<Case>& cases, bool together) {
  std::vector<std::vector<Bytes>> results(kThreads, std::vector<Bytes>(cases.size()));
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < cases.size(); ++i) {
        const size_t at = together ? i : (i * (2 * t + 1) + 17 * t) % cases.size();
        if (together) start.arrive_and_wait();
        results[t][at] = cases[at]();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// One index that all threads read, as they do a Python object's.
void test_shared_index(const Versions& versions) {
  EncodeOptions options;
  options.codec = Codec::arithmetic;
  options.level = kBest;
  options.layout = {DType::bfloat16, false};
  options.block_log2 = 12;
  options.row = kRow;
  const Bytes frame = encoded(versions.first, options, nullptr);
  const FrameIndex index = read_index(frame.data(), frame.size());
  std::vector<Case> cases(8, [&] {
    check_decodes(index, frame, versions.first, nullptr);
    return Bytes{};
  });
  run(cases, true);
}

void test_races() {
  // Made without the core, so that nothing of it has been used before the threads do.
  const std::vector<Versions> by_width = {Versions(1), Versions(2), Versions(4), Versions(8)};
  std::vector<Case> cases = {names_of_kernels};
  for (const auto& named : kDTypeNames) {
    const size_t width = item_size(named.number);
    const Versions& versions = by_width[width == 8 ? 3 : width / 2];
    add_codec(cases, Codec::arithmetic, kBest, named.number, versions);
    add_codec(cases, Codec::arithmetic, kFast, named.number, versions);
    add_codec(cases, Codec::huffman, 0, named.number, versions);
    add_codec(cases, Codec::zstd, 3, named.number, versions);
    add_codec(cases, Codec::split, 0, named.number, versions);
  }
  cases.push_back([&] { return growing_round_trip(by_width[1]); });
  cases.push_back([&] { return run_lengths(by_width[1].first); });
  cases.push_back([&] { return counts(by_width[1].first); });

  const std::vector<std::vector<Bytes>> cold = run(cases, true);
  for (const std::vector<Bytes>& results : cold) CHECK(results == cold[0]);
  set_num_threads(3);
  for (const std::vector<Bytes>& results : run(cases, false)) {
    for (size_t i = 0; i < cases.size(); ++i) {
      CHECK(results[i].empty() || results[i] == cold[0][i]);  // empty: not in this thread's order
    }
  }
  test_shared_index(by_width[1]);
  std::printf("races: %u threads, %zu cases\n", kThreads, cases.size());
}

}  // namespace
}  // namespace bf16codecs::test

int main() {
  bf16codecs::test::test_races();
  return 0;
}
