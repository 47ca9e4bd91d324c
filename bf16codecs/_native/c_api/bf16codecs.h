/* bf16codecs: lossless compression of floating-point numbers.
 *
 * The C interface: encode and decode frames, whole or by ranges of blocks, and inspect them
 * (docs/howto/c.md). A frame is the output of the Python package's codecs, and the content of a
 * chunk of a Zarr array or an HDF5 dataset (docs/format.md).
 *
 * - Functions return a status and throw no exceptions. The bf16codecs_error argument, which may be
 *   null, receives a message that says what went wrong, and where.
 * - The caller provides the memory for results. Only objects from the ..._open() functions and
 *   bf16codecs_growing_frame() must be closed. A call allocates working memory: a few MiB, and 16
 *   bytes for each block of the frame; encoding at level "best", with a base, or with
 *   may_drop_steps allocates bf16codecs_encode_room() bytes more. A few MiB are kept for the next
 *   call.
 * - Frames need not be trusted: no byte outside of the given memory is read. If a frame has
 *   checksums, the decoded bytes are the encoded ones, or the call fails. Without checksums, and in
 *   run lengths, damage may go unnoticed. After a failure, the content of the output memory is
 *   unspecified.
 * - All functions may be called from several threads at once. None starts a thread.
 * - Structures that later releases may extend begin with their size, which tells the library which
 *   members the caller knows. Initialize them with their macros, then set members.
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

/* Release of the linked library, such as "1.2.0". */
BF16CODECS_API const char* bf16codecs_version(void);

/* Instruction set that the library uses, such as "avx512"; null if memory is short. */
BF16CODECS_API const char* bf16codecs_active_isa(void);

/* ---- Errors ---------------------------------------------------------------------------------- */

typedef enum bf16codecs_status {
  BF16CODECS_OK = 0,
  BF16CODECS_CORRUPT = 1,             /* not a frame, or a damaged one */
  BF16CODECS_TRUNCATED = 2,           /* the input ends too early */
  BF16CODECS_BASE_MISMATCH = 3,       /* the base is missing, or not the frame's */
  BF16CODECS_UNSUPPORTED_VERSION = 4, /* of the format: a newer release may read it */
  BF16CODECS_UNSUPPORTED = 5,         /* a Zstandard plane, without a decompressor */
  BF16CODECS_INVALID_ARGUMENT = 6,
  BF16CODECS_NO_ROOM = 7,  /* the output memory is too small */
  BF16CODECS_NO_MEMORY = 8 /* the system lacks memory or another resource */
} bf16codecs_status;

typedef struct bf16codecs_error {
  bf16codecs_status status;
  char message[508]; /* one line of UTF-8, ends with a zero; empty if the status is OK */
} bf16codecs_error;

/* Name of a status, such as "corrupt"; null for an unknown number. */
BF16CODECS_API const char* bf16codecs_status_name(int status);

/* ---- Names ----------------------------------------------------------------------------------- */

enum {
  BF16CODECS_CODEC_SPLIT = 1,
  BF16CODECS_CODEC_HUFFMAN = 2,
  BF16CODECS_CODEC_ARITHMETIC = 3,
  BF16CODECS_CODEC_ZSTD = 4,
  BF16CODECS_CODEC_GROWING = 16 /* a directory of frames, which name their codecs */
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

/* Names in the Python package, such as "huffman"; null for an unknown number. */
BF16CODECS_API const char* bf16codecs_codec_name(int codec);
BF16CODECS_API const char* bf16codecs_dtype_name(int dtype);
BF16CODECS_API const char* bf16codecs_mode_name(int mode);

/* ---- Zstandard ------------------------------------------------------------------------------- */

/* The library contains no Zstandard: for frames of codec "zstd", the caller provides it. */
typedef struct bf16codecs_zstd {
  size_t struct_size;
  void* user; /* passed to both functions */
  /* Compresses n bytes to `out`; returns the size, or 0 if it exceeds the capacity. */
  size_t (*compress)(void* user, const void* plane, size_t n, int level, void* out,
                     size_t capacity);
  /* Decompresses one Zstandard frame, whose header states n bytes, to `plane`; returns 0, or
     nonzero if the payload is damaged. */
  int (*decompress)(void* user, const void* payload, size_t size, void* plane, size_t n);
} bf16codecs_zstd;

#define BF16CODECS_ZSTD_INIT {sizeof(bf16codecs_zstd), NULL, NULL, NULL}

/* ---- Encode ---------------------------------------------------------------------------------- */

typedef struct bf16codecs_encode_options {
  size_t struct_size;
  int codec;                   /* not BF16CODECS_CODEC_GROWING */
  int dtype;                   /* data type, which determines the planes of an item */
  int level;                   /* of the arithmetic codec; of Zstandard, 1 to 22 */
  int by_byte;                 /* planes are whole bytes; only for codec "split" */
  int no_checksums;            /* omit the checksums, which take 4 bytes for each block */
  int may_drop_steps;          /* encode without steps if that is smaller */
  unsigned steps;              /* number of equally long versions in the buffer, 1 to 65534 */
  uint64_t block_items;        /* a power of two; 0: the default, blocks of 512 KiB */
  uint64_t row;                /* items in a row of the array; 0: unknown */
  const void* base;            /* raw_size bytes to encode differences to, or null */
  const bf16codecs_zstd* zstd; /* for codec "zstd" */
  int no_grids;                /* write no levels and scales of weights that were quantised once */
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
   NULL,                               \
   0}

/* Capacity that bf16codecs_encode() needs for raw_size bytes. */
BF16CODECS_API bf16codecs_status bf16codecs_encode_room(uint64_t raw_size,
                                                        const bf16codecs_encode_options* options,
                                                        uint64_t* room, bf16codecs_error* error);

/* Encodes raw_size bytes to a frame. `capacity` must be at least bf16codecs_encode_room(). The
   frame is the same on every platform. */
BF16CODECS_API bf16codecs_status bf16codecs_encode(const void* raw, size_t raw_size,
                                                   const bf16codecs_encode_options* options,
                                                   void* frame, size_t capacity, size_t* frame_size,
                                                   bf16codecs_error* error);

/* ---- Decode ---------------------------------------------------------------------------------- */

typedef struct bf16codecs_decode_options {
  size_t struct_size;
  const void* base; /* required by frames that need one, even if it is empty; or null */
  size_t base_size;
  int padded; /* of a growing frame: fill missing versions with bytes of 255 */
  const bf16codecs_zstd* zstd;
} bf16codecs_decode_options;

#define BF16CODECS_DECODE_OPTIONS_INIT {sizeof(bf16codecs_decode_options), NULL, 0, 0, NULL}

/* Decodes a frame of exactly frame_size bytes to `out`. `options` may be null. `capacity` must be
   at least the raw size, which bf16codecs_inspect() returns. */
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
  int has_checksums;    /* 0 for a growing frame: see its versions */
  int needs_base;       /* the frame has differences to a base outside of it */
  unsigned steps;       /* versions in the frame, usually 1; of a growing frame, those present */
  unsigned room;        /* of a growing frame: number of versions that fit; 0 for others */
  uint64_t item_size;   /* in bytes */
  uint64_t raw_size;    /* decoded size, without padding */
  uint64_t padded_size; /* decoded size, with padding */
  uint64_t frame_size;
  uint64_t head_size;   /* bytes before the first block, or of a growing frame's directory */
  uint64_t block_items; /* in each block but the last of a version */
  uint64_t blocks;      /* of all versions; 0 for a growing frame */
  uint64_t base_digest; /* of the base, if one is needed */
} bf16codecs_info;

#define BF16CODECS_INFO_INIT \
  {sizeof(bf16codecs_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Describes a frame by its head. The whole frame must be given, as for bf16codecs_decode(), but its
   blocks are not examined. */
BF16CODECS_API bf16codecs_status bf16codecs_inspect(const void* frame, size_t frame_size,
                                                    bf16codecs_info* info, bf16codecs_error* error);

/* ---- Parts of a frame ------------------------------------------------------------------------ */

/* The head of a frame, which locates the bytes of any range of blocks for decoding. It is immutable
   and independent of the bytes that it was opened from. */
typedef struct bf16codecs_frame bf16codecs_frame;

/* Number of first bytes that bf16codecs_head_size() needs; fewer if the whole frame is smaller. */
#define BF16CODECS_PREFIX_SIZE 48

/* Number of first bytes that bf16codecs_open() needs; of a growing frame, the size of its
   directory. */
BF16CODECS_API bf16codecs_status bf16codecs_head_size(const void* prefix, size_t size,
                                                      uint64_t* head_size, bf16codecs_error* error);

/* Opens a frame from its first `size` bytes. Of a growing frame, open the versions one by one
   instead. The caller closes *frame. */
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
  uint64_t raw_offset; /* of its items in the decoded frame */
  uint64_t raw_size;   /* the last block includes the odd bytes at the end of the buffer */
  uint64_t parent;     /* the block of this frame that it is coded against, OUTSIDE or NO_PARENT */
  int has_checksum;
  uint32_t checksum; /* of the decoded items */
} bf16codecs_block;

#define BF16CODECS_BLOCK_INIT {sizeof(bf16codecs_block), 0, 0, 0, 0, 0, 0, 0, 0}

BF16CODECS_API bf16codecs_status bf16codecs_block_info(const bf16codecs_frame* frame,
                                                       uint64_t number, bf16codecs_block* block,
                                                       bf16codecs_error* error);

typedef struct bf16codecs_plane {
  int mode;    /* see bf16codecs_mode_name() */
  size_t size; /* of its bytes in the block */
} bf16codecs_plane;

/* Returns the modes and sizes of a block's planes, from the bytes of the block. `planes` must have
   room for 8; items of n bytes have n planes. */
BF16CODECS_API bf16codecs_status bf16codecs_block_planes(const bf16codecs_frame* frame,
                                                         uint64_t number, const void* block,
                                                         size_t size, bf16codecs_plane planes[],
                                                         bf16codecs_error* error);

/* Decodes blocks [first, last), all of one version. `payload` has exactly the bytes of these blocks
   in the frame; options->base, the decoded items of their parents. The last block of a frame
   includes the odd bytes at the end of the buffer. A frame without blocks may consist of such
   bytes, which only bf16codecs_decode() returns. */
BF16CODECS_API bf16codecs_status
bf16codecs_decode_blocks(const bf16codecs_frame* frame, const void* payload, size_t payload_size,
                         uint64_t first, uint64_t last, const bf16codecs_decode_options* options,
                         void* out, size_t capacity, size_t* raw_size, bf16codecs_error* error);

/* ---- Growing frames: a directory, and behind it a frame for each version ----------------------
 */

/* Tells from its first bytes whether a frame is a growing one. */
BF16CODECS_API int bf16codecs_is_growing(const void* prefix, size_t size);

/* A directory. It is immutable and independent of the bytes that it was opened from. */
typedef struct bf16codecs_growing bf16codecs_growing;

/* Opens a directory; more bytes may follow it. The caller closes *growing. */
BF16CODECS_API bf16codecs_status bf16codecs_growing_open(const void* directory, size_t size,
                                                         bf16codecs_growing** growing,
                                                         bf16codecs_error* error);
BF16CODECS_API void bf16codecs_growing_close(bf16codecs_growing* growing);

BF16CODECS_API bf16codecs_status bf16codecs_growing_info(const bf16codecs_growing* growing,
                                                         bf16codecs_info* info,
                                                         bf16codecs_error* error);

typedef struct bf16codecs_version_info {
  size_t struct_size;
  uint64_t offset; /* of the version's frame in the growing frame */
  uint64_t size;
  uint64_t parent; /* the version that is its base, or NO_PARENT */
} bf16codecs_version_info;

#define BF16CODECS_VERSION_INFO_INIT {sizeof(bf16codecs_version_info), 0, 0, 0}

BF16CODECS_API bf16codecs_status bf16codecs_growing_version(const bf16codecs_growing* growing,
                                                            uint64_t number,
                                                            bf16codecs_version_info* version,
                                                            bf16codecs_error* error);

/* Opens a version's frame from its first `size` bytes, and checks it against the directory. The
   caller closes *frame. */
BF16CODECS_API bf16codecs_status bf16codecs_growing_frame(const bf16codecs_growing* growing,
                                                          uint64_t number, const void* head,
                                                          size_t size, bf16codecs_frame** frame,
                                                          bf16codecs_error* error);

/* ---- Run lengths: the codec "bf16codecs.rle", whose output is not a frame ---------------------
 */

/* Largest encoded size of raw_size bytes. */
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
