#include "run_length/run_length.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "format/errors.h"

namespace bf16codecs::run_length {
namespace {

constexpr uint8_t kMarker = 0xFF;
constexpr size_t kLeastRun = 5, kMostRun = 255;
// Counts below this are of literal markers, less one: the least run is written as its count.
constexpr size_t kMarkers = kLeastRun - 1;

[[noreturn]] void throw_truncated(size_t size) {
  throw TruncatedDataError("run lengths: the data end within a run, after " +
                           counted(size, "byte"));
}

[[noreturn]] void throw_corrupt(size_t offset, size_t count) {
  throw CorruptDataError("run lengths: a count of " + std::to_string(count) + " at byte " +
                         std::to_string(offset) + ", which no run has");
}

// Calls copy(bytes, n) and repeat(byte, n) for what the tokens stand for, in order.
template <typename Copy, typename Repeat>
void read(const uint8_t* const encoded, size_t size, Copy copy, Repeat repeat) {
  const uint8_t *at = encoded, *const end = encoded + size;
  while (at != end) {
    const void* const found = std::memchr(at, kMarker, static_cast<size_t>(end - at));
    const uint8_t* const marker = found != nullptr ? static_cast<const uint8_t*>(found) : end;
    if (marker != at) copy(at, static_cast<size_t>(marker - at));
    if (marker == end) return;
    if (end - marker < 2) throw_truncated(size);
    const size_t count = marker[1];
    if (count < kMarkers) {
      repeat(kMarker, count + 1);
      at = marker + 2;
      continue;
    }
    if (count < kLeastRun) throw_corrupt(static_cast<size_t>(marker + 1 - encoded), count);
    if (end - marker < 3) throw_truncated(size);
    repeat(marker[2], count);
    at = marker + 3;
  }
}

// Bytes that are looked at together, of one word: 0.5 GB/s become 2 where there are few runs.
constexpr size_t kStride = 8;

// Whether there is no marker in kStride bytes, and no run begins there. There is one more after
// them.
bool is_literal(const uint8_t* bytes) {
  constexpr uint64_t kOnes = 0x0101010101010101;
  uint64_t word;
  static_assert(sizeof word == kStride);
  std::memcpy(&word, bytes, kStride);
  const bool has_marker = (((word & 0x7F * kOnes) + kOnes) & word & 0x80 * kOnes) != 0;
  // Any five equal bytes that begin here have one of these pairs in their middle.
  return !has_marker && bytes[3] != bytes[4] && bytes[7] != bytes[8];
}

}  // namespace

size_t encode(const uint8_t* raw, size_t n, uint8_t* out) {
  const uint8_t* const first = out;
  for (size_t i = 0; i < n;) {
    while (i + kStride < n && is_literal(raw + i)) {
      std::memcpy(out, raw + i, kStride);
      out += kStride;
      i += kStride;
    }
    const uint8_t value = raw[i];
    const size_t most = std::min(n - i, kMostRun);
    size_t run = 1;
    while (run < most && raw[i + run] == value) ++run;
    i += run;
    if (run >= kLeastRun) {
      *out++ = kMarker;
      *out++ = static_cast<uint8_t>(run);
      *out++ = value;
    } else if (value == kMarker) {
      *out++ = kMarker;
      *out++ = static_cast<uint8_t>(run - 1);
    } else {
      for (; run != 0; --run) *out++ = value;
    }
  }
  return static_cast<size_t>(out - first);
}

uint64_t decoded_size(const uint8_t* encoded, size_t size) {
  uint64_t total = 0;
  read(
      encoded, size, [&](const uint8_t*, size_t n) { total += n; },
      [&](uint8_t, size_t n) { total += n; });
  return total;
}

void decode(const uint8_t* encoded, size_t size, uint8_t* out, uint64_t room) {
  const auto take = [&](size_t n) {
    if (n > room) throw CorruptDataError("run lengths: more bytes than there is room for");
    room -= n;
    uint8_t* const target = out;
    out += n;
    return target;
  };
  read(
      encoded, size, [&](const uint8_t* bytes, size_t n) { std::memcpy(take(n), bytes, n); },
      [&](uint8_t value, size_t n) { std::memset(take(n), value, n); });
  if (room != 0) throw CorruptDataError("run lengths: " + counted(room, "byte") + " too few");
}

}  // namespace bf16codecs::run_length
