#include "core.h"

#include <algorithm>
#include <cstring>

#include "format/zstd_frame.h"
#include "threads/pool.h"

namespace bf16codecs {
namespace {

const Kernels* in_use = &kScalarKernels;

}  // namespace

// In place of kernels/active.cpp and of the pool: the linker takes the core's own files only for
// what is not defined yet.
const Kernels& kernels() {
  return *in_use;
}

// A new workspace for each task: in one that is left from a larger block, no sanitizer would see a
// step outside, or bytes that nobody wrote.
void parallel_for(size_t n, const Task& task) {
  for (size_t i = 0; i < n; ++i) {
    Workspace workspace;
    task(i, workspace);
  }
}

namespace fuzz {
namespace {

constexpr size_t kZstdHead = 12;  // magic, descriptor, content size of 4 bytes, head of the block

// Where a plane repeats its first few symbols.
size_t zstd_compress(const uint8_t* plane, size_t n, int, uint8_t* out, size_t capacity) {
  constexpr size_t kLongest = 16;
  if (capacity < kZstdHead + kLongest) return 0;
  for (size_t period = 1; period <= kLongest; ++period) {
    if (std::memcmp(plane, plane + period, n - period) != 0) continue;
    constexpr uint8_t kMagicAndDescriptor[] = {0x28, 0xB5, 0x2F, 0xFD, 0xA0};
    std::copy_n(kMagicAndDescriptor, sizeof kMagicAndDescriptor, out);
    store_le(out + 5, static_cast<uint32_t>(n));
    out[9] = static_cast<uint8_t>(period << 3 | 1);  // the last block, raw
    out[10] = out[11] = 0;
    std::copy_n(plane, period, out + kZstdHead);
    return kZstdHead + period;
  }
  return 0;
}

void zstd_decompress(const uint8_t* payload, size_t size, uint8_t* plane, size_t n) {
  const ZstdFrame frame = zstd_frame(payload, size);
  if (frame.content_size != n || frame.end != size || size <= kZstdHead) {
    throw CorruptDataError("Zstandard plane: not a frame of the plane's size");
  }
  for (size_t i = 0; i < n; ++i) plane[i] = payload[kZstdHead + i % (size - kZstdHead)];
}

}  // namespace

const std::vector<const Kernels*>& instruction_sets() {
  static const std::vector<const Kernels*> sets = available_kernels();
  return sets;
}

void use(const Kernels& set) {
  in_use = &set;
}

bool Outcome::operator==(const Outcome& other) const {
  if (error != other.error) return false;
  return !error.empty() ||
         (size == other.size && std::equal(bytes.get(), bytes.get() + size, other.bytes.get()));
}

bool is_whole_frame(const uint8_t* data, size_t size, FrameIndex& index) {
  return error_of([&] {
           index = read_index(data, size);
           check_frame_size(index, size);
         })
      .empty();
}

bool is_frame_to_decode(const uint8_t* data, size_t size, FrameIndex& index) {
  return is_whole_frame(data, size, index) && index.blocks() != 0 &&
         index.header.raw_size <= kMostDecoded;
}

Outcome decode(const FrameIndex& index, const uint8_t* frame, size_t first, size_t last) {
  static uint8_t unwritten = 0;
  ++unwritten;  // what a decoder does not write differs from call to call
  Outcome outcome;
  outcome.size = index.raw_size(first, last);
  outcome.bytes.reset(new uint8_t[outcome.size]);
  std::fill_n(outcome.bytes.get(), outcome.size, unwritten);
  const uint8_t* payload = frame + index.offsets[first];
  Bytes copy;
  if (last - first != index.blocks()) {
    copy.assign(payload, frame + index.offsets[last]);
    payload = copy.data();
  }
  outcome.error = error_of(
      [&] { decode_blocks(index, payload, first, last, &zstd(), nullptr, outcome.bytes.get()); });
  return outcome;
}

const Zstd& zstd() {
  static const Zstd hooks{zstd_compress, zstd_decompress};
  return hooks;
}

}  // namespace fuzz
}  // namespace bf16codecs
