#include "c_api/given.h"

#include <optional>

#include "format/frame.h"
#include "format/names.h"
#include "format/zstd_frame.h"

namespace bf16codecs::c_api {
namespace {

// The header's numbers must equal those of the format.
static_assert(BF16CODECS_CODEC_SPLIT == int(Codec::split));
static_assert(BF16CODECS_CODEC_HUFFMAN == int(Codec::huffman));
static_assert(BF16CODECS_CODEC_ARITHMETIC == int(Codec::arithmetic));
static_assert(BF16CODECS_CODEC_ZSTD == int(Codec::zstd));
static_assert(BF16CODECS_CODEC_GROWING == kGrowingCodec);
static_assert(BF16CODECS_DTYPE_BFLOAT16 == int(DType::bfloat16));
static_assert(BF16CODECS_DTYPE_FLOAT16 == int(DType::float16));
static_assert(BF16CODECS_DTYPE_FLOAT32 == int(DType::float32));
static_assert(BF16CODECS_DTYPE_FLOAT64 == int(DType::float64));
static_assert(BF16CODECS_DTYPE_FLOAT8_E4M3FN == int(DType::float8_e4m3fn));
static_assert(BF16CODECS_DTYPE_FLOAT8_E5M2 == int(DType::float8_e5m2));
static_assert(BF16CODECS_LEVEL_FAST == kFast && BF16CODECS_LEVEL_BEST == kBest);

template <typename Number, size_t n>
Number number_of(const char* what, const Named<Number> (&names)[n], int number) {
  if (const auto found = find_number(names, number)) return *found;
  throw std::invalid_argument(std::string("the ") + what + " is " + listed(names) + ", not " +
                              std::to_string(number));
}

void check_level(const EncodeOptions& options) {
  const int level = options.level;
  if (options.codec == Codec::arithmetic) {
    number_of("level", kLevelNames, level);
  } else if (options.codec == Codec::zstd) {
    if (level < 1 || level > kMaxZstdLevel) {
      throw std::invalid_argument("the level is 1 to " + std::to_string(kMaxZstdLevel) + ", not " +
                                  std::to_string(level));
    }
  } else if (level != 0) {
    throw std::invalid_argument("codec " + described(options.codec) + " has no levels");
  }
}

}  // namespace

Zstd zstd_of(const bf16codecs_zstd* functions) {
  Zstd zstd;
  const bf16codecs_zstd given = read_struct(functions, kNoZstd);
  if (given.compress != nullptr) {
    zstd.compress = [given](const uint8_t* plane, size_t n, int level, uint8_t* out,
                            size_t capacity) {
      const size_t size = given.compress(given.user, plane, n, level, out, capacity);
      return size <= capacity ? size : 0;
    };
  }
  if (given.decompress != nullptr) {
    zstd.decompress = [given](const uint8_t* payload, size_t size, uint8_t* plane, size_t n) {
      check_zstd_plane(payload, size, n);
      if (given.decompress(given.user, payload, size, plane, n) != 0) {
        throw CorruptDataError("Zstandard plane: it cannot be decompressed");
      }
    };
  }
  return zstd;
}

EncodeOptions encode_options(const bf16codecs_encode_options& given) {
  EncodeOptions options;
  options.codec = number_of("codec", kCodecNames, given.codec);
  options.layout = {number_of("dtype", kDTypeNames, given.dtype), given.by_byte != 0};
  if (options.layout.by_byte && options.codec != Codec::split) {
    throw std::invalid_argument("only codec " + described(Codec::split) + " splits by byte");
  }
  options.level = given.level;
  check_level(options);
  if (options.codec == Codec::zstd && !zstd_of(given.zstd).compress) {
    throw std::invalid_argument("codec " + described(Codec::zstd) + " needs a compressor");
  }
  options.has_checksums = given.no_checksums == 0;
  if (given.block_items > SIZE_MAX || given.row > SIZE_MAX) {
    throw std::invalid_argument("a block or a row is larger than memory");
  }
  options.block_log2 =
      block_log2_for(static_cast<size_t>(given.block_items), options.layout.planes());
  options.row = static_cast<size_t>(given.row);
  options.steps = given.steps;
  options.may_drop_steps = given.may_drop_steps != 0;
  options.has_base = given.base != nullptr;
  options.may_use_grids = given.no_grids == 0;
  return options;
}

}  // namespace bf16codecs::c_api
