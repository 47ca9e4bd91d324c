/* bf16codecs: lossless compression of floating-point numbers.
 *
 * The C interface of the library: encode and decode frames, whole or by ranges of blocks, and tell
 * what is in them (docs/howto/c.md). A frame is what the Python package's codecs return, what a
 * chunk of a Zarr array holds and a chunk of an HDF5 dataset (docs/format.md).
 *
 * - Functions return a status, and throw nothing. What went wrong, and where, is told in the
 *   bf16codecs_error that they are given, which may be null.
 * - Results go to memory of the caller's. What the functions ..._open() and
 *   bf16codecs_growing_frame() make has to be closed, and nothing else. A call takes working memory
 *   of its own: some MiB, and 16 bytes for each block of the frame; to encode at level "best", with
 *   a base or where steps may be dropped, as much again as bf16codecs_encode_room() says. It keeps
 *   some MiB for the next.
 * - Frames may come from strangers: nothing outside of the given bytes is read. Where a frame has
 *   checksums, the decoded bytes are those that were encoded, or the call fails; without them, and
 *   of run lengths, damage may give other bytes. After a failure, what the output memory holds is
 *   not specified.
 * - Every function may be called from several threads at once. None starts a thread.
 * - Structures that may grow begin with their size, by which later releases tell what a caller
 *   knows: initialize them with their macros, and set what is to be other than that.
 */
#ifndef BF16CODECS_H
#define BF16CODECS_H

#include <stddef.h>
#include <stdint.h>

/* Define BF16CODECS_STATIC to link the static library. */
#if defined(BF16CODECS_STATIC)
#define BF16CODECS_API
#elif defined(_WIN32) && defined(BF16CODECS_BUILDING)
#define BF16CODECS_API __declspec(dllexport)
#elif defined(_WIN32)
#define BF16CODECS_API __declspec(dllimport)
#elif defined(__GNUC__)
#define BF16CODECS_API __attribute__((visibility("default")))
#else
#define BF16CODECS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The release, such as "1.2.0", of the library that is linked. */
BF16CODECS_API const char* bf16codecs_version(void);

/* The instruction set that it uses, such as "avx512"; null where memory is short. */
BF16CODECS_API const char* bf16codecs_active_isa(void);

/* ---- Errors ---------------------------------------------------------------------------------- */

typedef enum bf16codecs_status {
  BF16CODECS_OK = 0,
  BF16CODECS_CORRUPT = 1,             /* not a frame, or a damaged one */
  BF16CODECS_TRUNCATED = 2,           /* it ends too early */
  BF16CODECS_BASE_MISMATCH = 3,       /* the base is missing, or another one */
  BF16CODECS_UNSUPPORTED_VERSION = 4, /* of the format: a newer release may know it */
  BF16CODECS_UNSUPPORTED = 5,         /* a plane of Zstandard, and no decompressor was given */
  BF16CODECS_INVALID_ARGUMENT = 6,
  BF16CODECS_NO_ROOM = 7,  /* the output memory is too small */
  BF16CODECS_NO_MEMORY = 8 /* or another resource of the system */
} bf16codecs_status;

typedef struct bf16codecs_error {
  bf16codecs_status status;
  char message[508]; /* one line of UTF-8, ends with a zero; empty if the status is OK */
} bf16codecs_error;

/* The name of a status, such as "corrupt"; null for a number that is none. */
BF16CODECS_API const char* bf16codecs_status_name(int status);

/* ---- Names ----------------------------------------------------------------------------------- */

enum {
  BF16CODECS_CODEC_SPLIT = 1,
  BF16CODECS_CODEC_HUFFMAN = 2,
  BF16CODECS_CODEC_ARITHMETIC = 3,
  BF16CODECS_CODEC_ZSTD = 4,
  BF16CODECS_CODEC_GROWING = 16 /* a directory of frames, each of its own codec */
};

enum {
  BF16CODECS_DTYPE_BFLOAT16 = 0,
  BF16CODECS_DTYPE_FLOAT16 = 1,
  BF16CODECS_DTYPE_FLOAT32 = 2,
  BF16CODECS_DTYPE_FLOAT64 = 3,
  BF16CODECS_DTYPE_FLOAT8_E4M3FN = 4,
  BF16CODECS_DTYPE_FLOAT8_E5M2 = 5
};

/* Levels of the arithmetic codec. */
enum { BF16CODECS_LEVEL_FAST = 0, BF16CODECS_LEVEL_BEST = 1 };

/* The names that Python has for them, such as "huffman"; null for a number that is none. */
BF16CODECS_API const char* bf16codecs_codec_name(int codec);
BF16CODECS_API const char* bf16codecs_dtype_name(int dtype);
BF16CODECS_API const char* bf16codecs_mode_name(int mode);

/* ---- Zstandard ------------------------------------------------------------------------------- */

/* The library has no Zstandard of its own. Frames of codec "zstd" need one from the caller. */
typedef struct bf16codecs_zstd {
  size_t struct_size;
  void* user; /* passed to both functions */
  /* Compresses n bytes to out; returns the size, or 0 if that is more than the capacity. */
  size_t (*compress)(void* user, const void* plane, size_t n, int level, void* out,
                     size_t capacity);
  /* Decompresses one Zstandard frame, which states a content of n bytes, to `plane`; returns 0, or
     another number if the payload is damaged. */
  int (*decompress)(void* user, const void* payload, size_t size, void* plane, size_t n);
} bf16codecs_zstd;

#define BF16CODECS_ZSTD_INIT {sizeof(bf16codecs_zstd), NULL, NULL, NULL}

/* ---- Encode ---------------------------------------------------------------------------------- */

typedef struct bf16codecs_encode_options {
  size_t struct_size;
  int codec;                   /* not BF16CODECS_CODEC_GROWING */
  int dtype;                   /* how the bytes of an item become planes */
  int level;                   /* of the arithmetic codec; of Zstandard, 1 to 22 */
  int by_byte;                 /* planes are whole bytes; only for codec "split" */
  int no_checksums;            /* leave out the 4 bytes a block that tell damage */
  int may_drop_steps;          /* encode without steps where that is smaller */
  unsigned steps;              /* equally long versions in the buffer, 1 to 65534 */
  uint64_t block_items;        /* a power of two; 0: the default, blocks of 512 KiB */
  uint64_t row;                /* items in a row of the array, for level "best"; 0: unknown */
  const void* base;            /* of raw_size bytes: the frame has differences to it; or null */
  const bf16codecs_zstd* zstd; /* for codec "zstd" */
} bf16codecs_encode_options;

#define BF16CODECS_ENCODE_OPTIONS_INIT \
  {sizeof(bf16codecs_encode_options),  \
   BF16CODECS_CODEC_HUFFMAN,           \
   BF16CODECS_DTYPE_BFLOAT16,          \
   BF16CODECS_LEVEL_FAST,              \
   0,                                  \
   0,                                  \
   0,                                  \
   1,                                  \
   0,                                  \
   0,                                  \
   NULL,                               \
   NULL}

/* How many bytes of memory bf16codecs_encode() needs for a frame of raw_size bytes. */
BF16CODECS_API bf16codecs_status bf16codecs_encode_room(uint64_t raw_size,
                                                        const bf16codecs_encode_options* options,
                                                        uint64_t* room, bf16codecs_error* error);

/* Encodes raw_size bytes to a frame. `capacity` is at least what bf16codecs_encode_room() says. The
   bytes are the same on every platform. */
BF16CODECS_API bf16codecs_status bf16codecs_encode(const void* raw, size_t raw_size,
                                                   const bf16codecs_encode_options* options,
                                                   void* frame, size_t capacity, size_t* frame_size,
                                                   bf16codecs_error* error);

/* ---- Decode ---------------------------------------------------------------------------------- */

typedef struct bf16codecs_decode_options {
  size_t struct_size;
  const void* base; /* of a frame that needs one, even if it is empty; or null */
  size_t base_size;
  int padded; /* of a growing frame: versions that are not there are bytes of 255 */
  const bf16codecs_zstd* zstd;
} bf16codecs_decode_options;

#define BF16CODECS_DECODE_OPTIONS_INIT {sizeof(bf16codecs_decode_options), NULL, 0, 0, NULL}

/* Decodes a whole frame, and nothing behind it, to `out`. `options` may be null. `capacity` is at
   least the raw size, which bf16codecs_inspect() tells. */
BF16CODECS_API bf16codecs_status bf16codecs_decode(const void* frame, size_t frame_size,
                                                   const bf16codecs_decode_options* options,
                                                   void* out, size_t capacity, size_t* raw_size,
                                                   bf16codecs_error* error);

/* ---- Inspect --------------------------------------------------------------------------------- */

typedef struct bf16codecs_info {
  size_t struct_size;
  int version; /* of the format */
  int codec;
  int dtype;
  int by_byte;
  int has_checksums;    /* 0 for a growing frame, whose versions tell it each */
  int needs_base;       /* the frame has differences to a base outside of it */
  unsigned steps;       /* versions in the frame: 1 in most; of a growing one, those there */
  unsigned room;        /* of a growing frame: for how many versions; 0 for others */
  uint64_t item_size;   /* in bytes */
  uint64_t raw_size;    /* of what bf16codecs_decode() gives, without padding */
  uint64_t padded_size; /* and with it */
  uint64_t frame_size;
  uint64_t head_size;   /* bytes before the first block, or of a growing frame's directory */
  uint64_t block_items; /* in each block but the last of a version */
  uint64_t blocks;      /* of all versions; 0 for a growing frame */
  uint64_t base_digest; /* of the base that is needed */
} bf16codecs_info;

#define BF16CODECS_INFO_INIT \
  {sizeof(bf16codecs_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Tells what a frame says of itself. All of it is there, as for bf16codecs_decode(); of the blocks,
   nothing is looked at. */
BF16CODECS_API bf16codecs_status bf16codecs_inspect(const void* frame, size_t frame_size,
                                                    bf16codecs_info* info, bf16codecs_error* error);

/* ---- Parts of a frame ------------------------------------------------------------------------ */

/* The head of a frame: enough to know which bytes a range of its blocks has, and to decode them.
   Opened, it does not change, and does not need the bytes that it was opened from. */
typedef struct bf16codecs_frame bf16codecs_frame;

/* So many first bytes, or all of a smaller frame, tell bf16codecs_head_size(). */
#define BF16CODECS_PREFIX_SIZE 48

/* How many first bytes of a frame bf16codecs_open() needs; of a growing frame, how many its
   directory has. */
BF16CODECS_API bf16codecs_status bf16codecs_head_size(const void* prefix, size_t size,
                                                      uint64_t* head_size, bf16codecs_error* error);

/* Opens a frame, of which the first `size` bytes are there: no growing one, whose versions are
   opened one by one. *frame is to be closed. */
BF16CODECS_API bf16codecs_status bf16codecs_open(const void* head, size_t size,
                                                 bf16codecs_frame** frame, bf16codecs_error* error);
BF16CODECS_API void bf16codecs_close(bf16codecs_frame* frame);

BF16CODECS_API bf16codecs_status bf16codecs_frame_info(const bf16codecs_frame* frame,
                                                       bf16codecs_info* info,
                                                       bf16codecs_error* error);

#define BF16CODECS_NO_PARENT UINT64_MAX
#define BF16CODECS_OUTSIDE (UINT64_MAX - 1)

typedef struct bf16codecs_block {
  size_t struct_size;
  uint64_t items;
  uint64_t offset; /* of its bytes in the frame */
  uint64_t size;
  uint64_t raw_offset; /* of what they decode to in what the frame does */
  uint64_t raw_size;   /* with the last block, the odd bytes at the end of the buffer */
  uint64_t parent;     /* the block that it is coded against: of this frame, OUTSIDE or NO_PARENT */
  int has_checksum;
  uint32_t checksum; /* of the decoded items */
} bf16codecs_block;

#define BF16CODECS_BLOCK_INIT {sizeof(bf16codecs_block), 0, 0, 0, 0, 0, 0, 0, 0}

BF16CODECS_API bf16codecs_status bf16codecs_block_info(const bf16codecs_frame* frame,
                                                       uint64_t number, bf16codecs_block* block,
                                                       bf16codecs_error* error);

typedef struct bf16codecs_plane {
  int mode;    /* such as that named "rans_pairs" */
  size_t size; /* of its bytes in the block */
} bf16codecs_plane;

/* Tells how the planes of a block are stored, whose bytes are given. `planes` has room for 8; an
   item of n bytes has n. */
BF16CODECS_API bf16codecs_status bf16codecs_block_planes(const bf16codecs_frame* frame,
                                                         uint64_t number, const void* block,
                                                         size_t size, bf16codecs_plane planes[],
                                                         bf16codecs_error* error);

/* Decodes blocks [first, last), all of one version. `payload` has the frame's bytes from the first
   block's on, and as many as these have; options->base the decoded items of their parents. With the
   last block come the odd bytes at the end of the buffer, which may be all there is: a frame
   without blocks has none, and bf16codecs_decode() gives them. */
BF16CODECS_API bf16codecs_status
bf16codecs_decode_blocks(const bf16codecs_frame* frame, const void* payload, size_t payload_size,
                         uint64_t first, uint64_t last, const bf16codecs_decode_options* options,
                         void* out, size_t capacity, size_t* raw_size, bf16codecs_error* error);

/* ---- Growing frames: a directory, and behind it a frame for each version ----------------------
 */

/* Whether a frame is a growing one, by its first bytes. */
BF16CODECS_API int bf16codecs_is_growing(const void* prefix, size_t size);

/* A directory. Opened, it does not change, and does not need the bytes that it was opened from. */
typedef struct bf16codecs_growing bf16codecs_growing;

/* Opens a directory, whose bytes are there, and more may be. *growing is to be closed. */
BF16CODECS_API bf16codecs_status bf16codecs_growing_open(const void* directory, size_t size,
                                                         bf16codecs_growing** growing,
                                                         bf16codecs_error* error);
BF16CODECS_API void bf16codecs_growing_close(bf16codecs_growing* growing);

BF16CODECS_API bf16codecs_status bf16codecs_growing_info(const bf16codecs_growing* growing,
                                                         bf16codecs_info* info,
                                                         bf16codecs_error* error);

typedef struct bf16codecs_version_info {
  size_t struct_size;
  uint64_t offset; /* of the version's frame in the growing one */
  uint64_t size;
  uint64_t parent; /* the version that is its base, or NO_PARENT */
} bf16codecs_version_info;

#define BF16CODECS_VERSION_INFO_INIT {sizeof(bf16codecs_version_info), 0, 0, 0}

BF16CODECS_API bf16codecs_status bf16codecs_growing_version(const bf16codecs_growing* growing,
                                                            uint64_t number,
                                                            bf16codecs_version_info* version,
                                                            bf16codecs_error* error);

/* Opens a version's frame, of which the first `size` bytes are there, and compares it with the
   directory. *frame is to be closed. */
BF16CODECS_API bf16codecs_status bf16codecs_growing_frame(const bf16codecs_growing* growing,
                                                          uint64_t number, const void* head,
                                                          size_t size, bf16codecs_frame** frame,
                                                          bf16codecs_error* error);

/* ---- Run lengths: the codec "bf16codecs.rle", whose bytes are no frames -----------------------
 */

/* The most bytes that bf16codecs_rle_encode() makes of raw_size. */
BF16CODECS_API uint64_t bf16codecs_rle_bound(uint64_t raw_size);

BF16CODECS_API bf16codecs_status bf16codecs_rle_encode(const void* raw, size_t raw_size,
                                                       void* encoded, size_t capacity,
                                                       size_t* encoded_size,
                                                       bf16codecs_error* error);

BF16CODECS_API bf16codecs_status bf16codecs_rle_decoded_size(const void* encoded,
                                                             size_t encoded_size,
                                                             uint64_t* raw_size,
                                                             bf16codecs_error* error);

BF16CODECS_API bf16codecs_status bf16codecs_rle_decode(const void* encoded, size_t encoded_size,
                                                       void* out, size_t capacity, size_t* raw_size,
                                                       bf16codecs_error* error);

#ifdef __cplusplus
}
#endif

#endif /* BF16CODECS_H */
