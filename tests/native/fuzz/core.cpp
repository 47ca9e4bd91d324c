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

// More than one, so that what is shared out among threads is fuzzed too, each part in its turn.
unsigned get_num_threads() {
  return 3;
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

Bytes base_of(const FrameIndex& index) {
  const Header& header = index.header;
  if (!header.needs_base()) return {};
  Bytes base(static_cast<size_t>(header.raw_size));
  const unsigned kind = header.base_digest & 3;
  test::Random random(header.base_digest);
  // Zeros; anything; or items of a few exponents.
  for (size_t i = 0; i < base.size() && kind != 0; ++i) {
    const bool is_high = i % header.width() == header.width() - 1;
    base[i] = kind == 1 || !is_high ? random.byte() : static_cast<uint8_t>(0x3C + random.below(4));
  }
  return base;
}

namespace {

// Bytes that no decoder wrote: others from call to call.
Outcome unwritten(size_t size) {
  static uint8_t fill = 0;
  Outcome outcome;
  outcome.size = size;
  outcome.bytes.reset(new uint8_t[size]);
  std::fill_n(outcome.bytes.get(), size, ++fill);
  return outcome;
}

}  // namespace

Outcome decode(const FrameIndex& index, const uint8_t* frame, size_t first, size_t last,
               const Bytes& base) {
  Outcome outcome = unwritten(index.raw_size(first, last));
  const uint8_t* payload = frame + index.offsets[first];
  Bytes copy;
  if (last - first != index.blocks()) {
    copy.assign(payload, frame + index.offsets[last]);
    payload = copy.data();
  }
  const bool has_base = index.header.has_differences &&
                        index.versions[first / index.header.version_blocks()].has_base();
  outcome.error = error_of([&] {
    decode_blocks(index, payload, first, last, &zstd(), has_base ? base.data() : nullptr,
                  outcome.bytes.get());
  });
  return outcome;
}

Outcome decode_all(const FrameIndex& index, const uint8_t* frame, const Bytes& base,
                   bool in_place) {
  Outcome outcome = unwritten(static_cast<size_t>(index.header.raw_size));
  const uint8_t* of_frame = index.header.needs_base() ? base.data() : nullptr;
  if (in_place) of_frame = std::copy(base.begin(), base.end(), outcome.bytes.get()) - base.size();
  outcome.error = error_of([&] {
    decode_frame(index, frame + index.offsets[0], &zstd(), of_frame, outcome.bytes.get());
  });
  return outcome;
}

bool is_growing_to_decode(const uint8_t* data, size_t size, Growing& growing) {
  if (!is_growing(data, size)) return false;
  const std::string error = error_of([&] {
    growing.index = read_growing(data, size);
    growing.frames = read_growing_frames(growing.index, data, size);
  });
  return error.empty() && growing.index.version_size <= kMostDecoded / growing.frames.size();
}

Outcome decode_all(const Growing& growing, const uint8_t* data) {
  Outcome outcome = unwritten(growing.raw_size());
  outcome.error = error_of(
      [&] { decode_growing(growing.index, growing.frames, data, &zstd(), outcome.bytes.get()); });
  return outcome;
}

const Zstd& zstd() {
  static const Zstd hooks{zstd_compress, zstd_decompress};
  return hooks;
}

}  // namespace fuzz
}  // namespace bf16codecs
