#pragma once

// The native core as the fuzz targets use it: with an instruction set that they choose from call to
// call, and with memory of exactly the sizes in question, so that a sanitizer sees what leaves it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "codec.h"
#include "codec/growing.h"
#include "format/errors.h"
#include "kernels/dispatch.h"

namespace bf16codecs::fuzz {

using test::Bytes;

// Blocks of 12 bytes may decode to 4 MiB each, which is what the format allows. Frames that claim
// more than this are skipped: they would test the allocator, at a tenth of the speed.
inline constexpr uint64_t kMostDecoded = uint64_t{1} << 20;

// What the machine has, the scalar set first.
const std::vector<const Kernels*>& instruction_sets();
void use(const Kernels& set);

// What decoding gives: bytes, or the class and the text of the error.
struct Outcome {
  std::string error;
  std::unique_ptr<uint8_t[]> bytes;
  size_t size = 0;

  bool operator==(const Outcome& other) const;
};

// The error of read(), or an empty text. Anything but the documented classes ends the program.
template <typename Read>
std::string error_of(Read read) {
  try {
    read();
  } catch (const CorruptDataError& error) {
    return std::string("corrupt: ") + error.what();
  } catch (const TruncatedDataError& error) {
    return std::string("truncated: ") + error.what();
  } catch (const BaseMismatchError& error) {
    return std::string("base: ") + error.what();
  } catch (const UnsupportedVersionError& error) {
    return std::string("version: ") + error.what();
  }
  return {};
}

// A frame's index if all of it is right but for its blocks, whose size is that of the data.
bool is_whole_frame(const uint8_t* data, size_t size, FrameIndex& index);

// Such a frame, with blocks that decode to no more than kMostDecoded.
bool is_frame_to_decode(const uint8_t* data, size_t size, FrameIndex& index);

// Something to decode a frame's differences to, which its digest names: no input has to agree with
// it. Empty if it needs none.
Bytes base_of(const FrameIndex& index);

// Decodes blocks [first, last) of one version, from a copy of their bytes alone if there are
// others. `base` has the items with the same indices, if the version has a base.
Outcome decode(const FrameIndex& index, const uint8_t* frame, size_t first, size_t last,
               const Bytes& base = {});

// Decodes all versions; with `in_place`, the base's memory is what is written.
Outcome decode_all(const FrameIndex& index, const uint8_t* frame, const Bytes& base,
                   bool in_place = false);

// A growing frame of which all is right but for its blocks.
struct Growing {
  GrowingIndex index;
  std::vector<FrameIndex> frames;

  // Of the versions that are there.
  size_t raw_size() const { return frames.size() * static_cast<size_t>(index.version_size); }
};

// Such a growing frame, with versions that decode to no more than kMostDecoded.
bool is_growing_to_decode(const uint8_t* data, size_t size, Growing& growing);

// Decodes all its versions.
Outcome decode_all(const Growing& growing, const uint8_t* data);

// In place of Zstandard, which the core does not link: frames of it that hold one raw block, and
// stand for that block's content again and again.
const Zstd& zstd();

// Numbers from the front of an input; zeros where it has ended.
class Reader {
 public:
  Reader(const uint8_t* data, size_t size) : next_(data), end_(data + size) {}

  uint8_t u8() { return next_ != end_ ? *next_++ : uint8_t{0}; }
  uint16_t u16() {
    const unsigned low = u8();
    return static_cast<uint16_t>(low | unsigned{u8()} << 8);
  }
  uint32_t u32() {
    const uint32_t low = u16();
    return low | uint32_t{u16()} << 16;
  }
  const uint8_t* rest() const { return next_; }
  size_t left() const { return static_cast<size_t>(end_ - next_); }

 private:
  const uint8_t *next_, *end_;
};

}  // namespace bf16codecs::fuzz
