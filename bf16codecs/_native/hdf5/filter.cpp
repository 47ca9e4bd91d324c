#include "hdf5/filter.h"

#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>

#include "c_api/bf16codecs.h"
#include "format/errors.h"
#include "hdf5/abi.h"
#include "hdf5/expected.h"
#include "hdf5/report.h"
#include "hdf5/settings.h"
#include "huge_pages.h"

namespace bf16codecs {
namespace {

// Limit of cd_values[4], and of chunks before HDF5 2.0.
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

// An error of the C library.
struct Failure : std::runtime_error {
  explicit Failure(const bf16codecs_error& error)
      : std::runtime_error(error.message), status(error.status) {}

  bf16codecs_status status;
};

// Calls a function of the C library by call(&error). Throws Failure.
template <typename Call>
void must(Call call) {
  bf16codecs_error error;
  if (call(&error) != BF16CODECS_OK) throw Failure(error);
}

// Fails if the frame is not smaller than the chunk: libhdf5 then stores the chunk unfiltered if the
// filter is optional. Frames of split planes are exempt, since the next filter compresses them.
bool is_useless(const bf16codecs_encode_options& options, size_t frame_size, size_t nbytes) {
  return frame_size >= nbytes && options.codec != BF16CODECS_CODEC_SPLIT;
}

size_t encode_chunk(bf16codecs_encode_options options, bool is_optional, size_t nbytes,
                    size_t* buf_size, void** buf) {
  check_steps(nbytes, options);
  options.may_drop_steps = 1;
  uint64_t room = 0;
  must([&](bf16codecs_error* error) {
    return bf16codecs_encode_room(nbytes, &options, &room, error);
  });
  Chunk frame = allocate(room);
  const size_t allocated = static_cast<size_t>(room);
  size_t size = 0;
  must([&](bf16codecs_error* error) {
    return bf16codecs_encode(*buf, nbytes, &options, frame.get(), allocated, &size, error);
  });
  if (is_optional && is_useless(options, size, nbytes)) return 0;
  return hand_over(std::move(frame), allocated, size, buf_size, buf);
}

void check_chunk_size(size_t expected, uint64_t size) {
  if (expected != 0 && size != expected) {
    throw std::runtime_error("it has " + counted(size, "byte") + ", and cd_values[4] says " +
                             std::to_string(expected));
  }
}

// Throws unless the frame can be a chunk of HDF5.
void check_frame(const bf16codecs_info& info) {
  if (info.needs_base) {
    throw std::runtime_error(
        "its frame has differences to a base outside of it, which HDF5 cannot give: decode the"
        " stored chunk with the Python package's bf16codecs.decode(frame, base=...)");
  }
  if (info.padded_size == 0) throw std::runtime_error("the frame is empty, which no chunk is");
  // A frame may claim 4 MiB for 4 bytes, and a directory 65534 such versions for each.
  if (info.codec == BF16CODECS_CODEC_GROWING && info.padded_size > kMostGrowing) {
    throw std::runtime_error("it has room for " + counted(info.padded_size, "byte") +
                             ", and growing chunks have at most " + std::to_string(kMostGrowing));
  }
}

void decode_frame(const void* frame, size_t nbytes, void* out, size_t size) {
  bf16codecs_decode_options options = BF16CODECS_DECODE_OPTIONS_INIT;
  options.padded = 1;
  size_t raw_size = 0;
  try {
    must([&](bf16codecs_error* error) {
      return bf16codecs_decode(frame, nbytes, &options, out, size, &raw_size, error);
    });
  } catch (const Failure& failure) {
    if (failure.status != BF16CODECS_UNSUPPORTED) throw;
    throw std::runtime_error(
        "it has Zstandard planes, which the plugin cannot decode: read it with the Python package"
        " (bf16codecs.hdf5.read_tensor, or zarr)");
  }
}

size_t decode_chunk(std::span<const unsigned> values, size_t nbytes, size_t* buf_size, void** buf,
                    const void* caller) {
  if (!values.empty() && values[kHdf5CodecAt] == kHdf5Refused) {
    throw std::runtime_error("the configuration of its array's codec was refused");
  }
  bf16codecs_info info = BF16CODECS_INFO_INIT;
  must([&](bf16codecs_error* error) { return bf16codecs_inspect(*buf, nbytes, &info, error); });
  check_frame(info);
  check_chunk_size(hdf5_chunk_size(values.size(), values.data()), info.padded_size);
  if (info.padded_size > SIZE_MAX) throw std::bad_alloc();
  const size_t size = static_cast<size_t>(info.padded_size);
  const size_t room = room_for_chunk(size, values, caller);
  Chunk raw = allocate(room);
  decode_frame(*buf, nbytes, raw.get(), size);
  std::memset(raw.get() + size, 0, room - size);
  return hand_over(std::move(raw), room, size, buf_size, buf);
}

}  // namespace

size_t hdf5_filter(unsigned flags, size_t n_values, const unsigned values[], size_t nbytes,
                   size_t* buf_size, void** buf, const void* caller) {
  const bool is_decoding = (flags & kHdf5Reverse) != 0;
  const char* const failure = is_decoding ? "chunk not decoded" : "chunk not encoded";
  try {
    if (is_decoding) return decode_chunk({values, n_values}, nbytes, buf_size, buf, caller);
    const bf16codecs_encode_options options = hdf5_settings(n_values, values);
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
