/* What JavaScript calls: the C interface with plain numbers for arguments, because JavaScript knows
   no structures. A call returns its status, and leaves its results in one array of doubles, in
   which every size below 2^53 is exact, and its message beside. */
#include <stdlib.h>

#include "c_api/bf16codecs.h"

#define EXPORT(name) __attribute__((export_name(#name))) name

/* A page has no environment. */
char* getenv(const char* name) {
  (void)name;
  return NULL;
}

static double results[16];
static bf16codecs_error error;

double* EXPORT(bf16_results)(void) {
  return results;
}

const char* EXPORT(bf16_message)(void) {
  return error.message;
}

void* EXPORT(bf16_allocate)(size_t size) {
  return malloc(size);
}

void EXPORT(bf16_free)(void* memory) {
  free(memory);
}

const char* EXPORT(bf16_version)(void) {
  return bf16codecs_version();
}

const char* EXPORT(bf16_active_isa)(void) {
  return bf16codecs_active_isa();
}

const char* EXPORT(bf16_codec_name)(int codec) {
  return bf16codecs_codec_name(codec);
}

const char* EXPORT(bf16_dtype_name)(int dtype) {
  return bf16codecs_dtype_name(dtype);
}

/* ---- Zstandard is the page's: a function that returns 0, or another number for damage. ---------
 */

__attribute__((import_module("page"), import_name("zstd_decompress"))) int page_zstd_decompress(
    const void* payload, size_t size, void* plane, size_t n);

static int zstd_decompress(void* user, const void* payload, size_t size, void* plane, size_t n) {
  (void)user;
  return page_zstd_decompress(payload, size, plane, n);
}

static const bf16codecs_zstd zstd = {sizeof(bf16codecs_zstd), NULL, NULL, zstd_decompress};

static bf16codecs_decode_options decode_options(const void* base, size_t base_size, int padded,
                                                int has_zstd) {
  bf16codecs_decode_options options = BF16CODECS_DECODE_OPTIONS_INIT;
  options.base = base;
  options.base_size = base_size;
  options.padded = padded;
  options.zstd = has_zstd ? &zstd : NULL;
  return options;
}

/* ---- Whole frames ------------------------------------------------------------------------------
 */

static int tell_info(int status, const bf16codecs_info* info) {
  results[0] = info->codec;
  results[1] = info->dtype;
  results[2] = info->needs_base;
  results[3] = info->steps;
  results[4] = info->room;
  results[5] = (double)info->item_size;
  results[6] = (double)info->raw_size;
  results[7] = (double)info->padded_size;
  results[8] = (double)info->frame_size;
  results[9] = (double)info->head_size;
  results[10] = (double)info->block_items;
  results[11] = (double)info->blocks;
  return status;
}

int EXPORT(bf16_inspect)(const void* frame, size_t size) {
  bf16codecs_info info = BF16CODECS_INFO_INIT;
  const int status = bf16codecs_inspect(frame, size, &info, &error);
  return tell_info(status, &info);
}

int EXPORT(bf16_decode)(const void* frame, size_t size, const void* base, size_t base_size,
                        int padded, int has_zstd, void* out, size_t capacity) {
  const bf16codecs_decode_options options = decode_options(base, base_size, padded, has_zstd);
  size_t raw_size = 0;
  const int status = bf16codecs_decode(frame, size, &options, out, capacity, &raw_size, &error);
  results[0] = (double)raw_size;
  return status;
}

/* ---- Parts of frames ---------------------------------------------------------------------------
 */

int EXPORT(bf16_head_size)(const void* prefix, size_t size) {
  uint64_t head_size = 0;
  const int status = bf16codecs_head_size(prefix, size, &head_size, &error);
  results[0] = (double)head_size;
  return status;
}

static int tell_frame(int status, bf16codecs_frame* frame) {
  results[0] = (double)(uintptr_t)frame;
  return status;
}

int EXPORT(bf16_open)(const void* head, size_t size) {
  bf16codecs_frame* frame = NULL;
  const int status = bf16codecs_open(head, size, &frame, &error);
  return tell_frame(status, frame);
}

void EXPORT(bf16_close)(bf16codecs_frame* frame) {
  bf16codecs_close(frame);
}

int EXPORT(bf16_frame_info)(const bf16codecs_frame* frame) {
  bf16codecs_info info = BF16CODECS_INFO_INIT;
  const int status = bf16codecs_frame_info(frame, &info, &error);
  return tell_info(status, &info);
}

/* A block that stands in no frame is -1, one outside of this frame -2. */
static double block_number(uint64_t number) {
  if (number == BF16CODECS_NO_PARENT) return -1;
  return number == BF16CODECS_OUTSIDE ? -2 : (double)number;
}

int EXPORT(bf16_block)(const bf16codecs_frame* frame, double number) {
  bf16codecs_block block = BF16CODECS_BLOCK_INIT;
  const int status = bf16codecs_block_info(frame, (uint64_t)number, &block, &error);
  results[0] = (double)block.offset;
  results[1] = (double)block.size;
  results[2] = (double)block.raw_offset;
  results[3] = (double)block.raw_size;
  results[4] = block_number(block.parent);
  return status;
}

int EXPORT(bf16_decode_blocks)(const bf16codecs_frame* frame, const void* payload, size_t size,
                               double first, double last, const void* base, size_t base_size,
                               int has_zstd, void* out, size_t capacity) {
  const bf16codecs_decode_options options = decode_options(base, base_size, 0, has_zstd);
  size_t raw_size = 0;
  const int status = bf16codecs_decode_blocks(frame, payload, size, (uint64_t)first, (uint64_t)last,
                                              &options, out, capacity, &raw_size, &error);
  results[0] = (double)raw_size;
  return status;
}

/* ---- Growing frames ----------------------------------------------------------------------------
 */

int EXPORT(bf16_growing_open)(const void* directory, size_t size) {
  bf16codecs_growing* growing = NULL;
  const int status = bf16codecs_growing_open(directory, size, &growing, &error);
  results[0] = (double)(uintptr_t)growing;
  return status;
}

void EXPORT(bf16_growing_close)(bf16codecs_growing* growing) {
  bf16codecs_growing_close(growing);
}

int EXPORT(bf16_growing_info)(const bf16codecs_growing* growing) {
  bf16codecs_info info = BF16CODECS_INFO_INIT;
  const int status = bf16codecs_growing_info(growing, &info, &error);
  return tell_info(status, &info);
}

int EXPORT(bf16_growing_version)(const bf16codecs_growing* growing, double number) {
  bf16codecs_version_info version = BF16CODECS_VERSION_INFO_INIT;
  const int status = bf16codecs_growing_version(growing, (uint64_t)number, &version, &error);
  results[0] = (double)version.offset;
  results[1] = (double)version.size;
  results[2] = block_number(version.parent);
  return status;
}

int EXPORT(bf16_growing_frame)(const bf16codecs_growing* growing, double number, const void* head,
                               size_t size) {
  bf16codecs_frame* frame = NULL;
  const int status =
      bf16codecs_growing_frame(growing, (uint64_t)number, head, size, &frame, &error);
  return tell_frame(status, frame);
}

/* ---- Run lengths -------------------------------------------------------------------------------
 */

int EXPORT(bf16_rle_decoded_size)(const void* encoded, size_t size) {
  uint64_t raw_size = 0;
  const int status = bf16codecs_rle_decoded_size(encoded, size, &raw_size, &error);
  results[0] = (double)raw_size;
  return status;
}

int EXPORT(bf16_rle_decode)(const void* encoded, size_t size, void* out, size_t capacity) {
  size_t raw_size = 0;
  const int status = bf16codecs_rle_decode(encoded, size, out, capacity, &raw_size, &error);
  results[0] = (double)raw_size;
  return status;
}
