#include "hdf5/filter.h"

#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include "codec.h"
#include "codec/growing.h"
#include "format/errors.h"
#include "format/growing.h"
#include "hdf5/abi.h"
#include "hdf5/expected.h"
#include "hdf5/report.h"
#include "hdf5/settings.h"
#include "huge_pages.h"

namespace bf16codecs {
namespace {

// What cd_values[4] can state, and chunks of HDF5 have before its version 2.0.
constexpr uint64_t kMostGrowing = UINT32_MAX;

// libhdf5 and its filters pass chunks in memory from malloc().
struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Chunk = std::unique_ptr<uint8_t, Free>;

Chunk allocate(uint64_t size) {
  if (size > SIZE_MAX) throw std::bad_alloc();
  Chunk chunk(static_cast<uint8_t*>(std::malloc(static_cast<size_t>(size))));
  if (!chunk) throw std::bad_alloc();
  advise_huge_pages(chunk.get(), static_cast<size_t>(size));
  return chunk;
}

size_t hand_over(Chunk chunk, size_t allocated, size_t used, size_t* buf_size, void** buf) {
  std::free(*buf);
  *buf = chunk.release();
  *buf_size = allocated;
  return used;
}

// A frame that is no smaller is not worth storing: where the filter is optional, libhdf5 then
// stores the chunk as it is. Split planes are compressed by the filter after this one.
bool is_useless(const EncodeOptions& options, size_t frame_size, size_t nbytes) {
  return frame_size >= nbytes && options.codec != Codec::split;
}

size_t encode_chunk(EncodeOptions options, bool is_optional, size_t nbytes, size_t* buf_size,
                    void** buf) {
  check_steps(nbytes, options);
  options.may_drop_steps = true;
  const uint64_t room = encode_room(nbytes, options);
  Chunk frame = allocate(room);
  const size_t size =
      encode(static_cast<const uint8_t*>(*buf), nbytes, options, nullptr, frame.get());
  if (is_optional && is_useless(options, size, nbytes)) return 0;
  return hand_over(std::move(frame), static_cast<size_t>(room), size, buf_size, buf);
}

[[noreturn]] void refuse_zstd(const uint8_t*, size_t, uint8_t*, size_t) {
  throw CodecError(
      "it has Zstandard planes, which the plugin cannot decode: read the dataset"
      " with the Python package's bf16codecs.hdf5.read_tensor");
}

void check_chunk_size(size_t expected, uint64_t size) {
  if (expected != 0 && size != expected) {
    throw CorruptDataError("it has " + counted(size, "byte") + ", and cd_values[4] says " +
                           std::to_string(expected));
  }
}

// Replaces the chunk in *buf by raw_size bytes that decode(out, zstd) writes.
template <typename Decode>
size_t decode_to(uint64_t raw_size, std::span<const unsigned> values, size_t* buf_size, void** buf,
                 const void* caller, Decode decode) {
  check_chunk_size(hdf5_chunk_size(values.size(), values.data()), raw_size);
  if (raw_size > SIZE_MAX) throw std::bad_alloc();
  const size_t size = static_cast<size_t>(raw_size), room = room_for_chunk(size, values, caller);
  Chunk raw = allocate(room);
  decode(raw.get(), Zstd{nullptr, refuse_zstd});
  std::memset(raw.get() + size, 0, room - size);
  return hand_over(std::move(raw), room, size, buf_size, buf);
}

size_t decode_growing_chunk(std::span<const unsigned> values, size_t nbytes, size_t* buf_size,
                            void** buf, const void* caller) {
  const uint8_t* const bytes = static_cast<const uint8_t*>(*buf);
  const GrowingIndex index = read_growing(bytes, nbytes);
  const std::vector<FrameIndex> frames = read_growing_frames(index, bytes, nbytes);
  // A version may claim 4 MiB for 4 bytes, as a frame may, and a directory 65534 of them for each.
  if (index.raw_size() > kMostGrowing) {
    throw CorruptDataError("it has room for " + counted(index.raw_size(), "byte") +
                           ", and growing chunks have at most " + std::to_string(kMostGrowing));
  }
  return decode_to(index.raw_size(), values, buf_size, buf, caller,
                   [&](uint8_t* out, const Zstd& zstd) {
                     decode_growing(index, frames, bytes, &zstd, out);
                     const size_t there = frames.size() * static_cast<size_t>(index.version_size);
                     std::memset(out + there, kNotThere, index.raw_size() - there);
                   });
}

size_t decode_chunk(std::span<const unsigned> values, size_t nbytes, size_t* buf_size, void** buf,
                    const void* caller) {
  const uint8_t* const frame = static_cast<const uint8_t*>(*buf);
  if (is_growing(frame, nbytes)) {
    return decode_growing_chunk(values, nbytes, buf_size, buf, caller);
  }
  const FrameIndex index = read_index(frame, nbytes);
  check_frame_size(index, nbytes);
  if (index.header.needs_base()) {
    throw CodecError(
        "its frame has differences to a base outside of it, which HDF5 cannot give: decode the"
        " stored chunk with the Python package's bf16codecs.decode(frame, base=...)");
  }
  const uint64_t raw_size = index.header.raw_size;
  if (raw_size == 0) throw CorruptDataError("the frame is empty, which no chunk is");
  return decode_to(raw_size, values, buf_size, buf, caller, [&](uint8_t* out, const Zstd& zstd) {
    decode_frame(index, frame + index.offsets[0], &zstd, nullptr, out);
  });
}

}  // namespace

size_t hdf5_filter(unsigned flags, size_t n_values, const unsigned values[], size_t nbytes,
                   size_t* buf_size, void** buf, const void* caller) {
  const bool is_decoding = (flags & kHdf5Reverse) != 0;
  const char* const failure = is_decoding ? "HDF5 chunk not decoded" : "HDF5 chunk not encoded";
  try {
    if (is_decoding) return decode_chunk({values, n_values}, nbytes, buf_size, buf, caller);
    const EncodeOptions options = hdf5_settings(n_values, values);
    check_chunk_size(hdf5_chunk_size(n_values, values), nbytes);
    return encode_chunk(options, (flags & kHdf5Optional) != 0, nbytes, buf_size, buf);
  } catch (const std::bad_alloc&) {
    report(failure, "not enough memory");
  } catch (const std::exception& error) {
    report(failure, error.what());
  }
  return 0;
}

}  // namespace bf16codecs
