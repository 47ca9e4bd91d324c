/* Frames in files, by the C library.
 *
 *   frames encode RAW FRAME [bfloat16|float16|float32|float64]
 *   frames info FRAME
 *   frames decode FRAME RAW
 *   frames range FRAME FIRST LAST RAW    some blocks, without reading the others
 */
#include <bf16codecs.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What all but main() return: 0, or 1 after a line on stderr. */
static int failed(const char* path, const char* why) {
  fprintf(stderr, "frames: %s: %s\n", path, why);
  return 1;
}

static int failed_to(const char* path, const bf16codecs_error* error) {
  return failed(path, error->message);
}

typedef struct {
  unsigned char* bytes;
  size_t size;
} buffer;

/* Memory that may be empty, and is not null. */
static int allocate(buffer* memory, uint64_t size) {
  memory->size = (size_t)size;
  memory->bytes = size < SIZE_MAX ? malloc((size_t)size + 1) : NULL;
  return memory->bytes != NULL ? 0 : failed("memory", "not enough");
}

/* Reads `size` bytes of a file from `offset` on, or as many as there are. */
static int read_range(const char* path, uint64_t offset, uint64_t size, buffer* out) {
  FILE* file;
  if (allocate(out, size)) return 1;
  file = fopen(path, "rb");
  if (file == NULL) return failed(path, strerror(errno));
  if (offset > 0x7fffffff || fseek(file, (long)offset, SEEK_SET) != 0) {
    fclose(file);
    return failed(path, "this example reads the first 2 GB of a file");
  }
  out->size = fread(out->bytes, 1, out->size, file);
  fclose(file);
  return 0;
}

static int read_file(const char* path, buffer* out) {
  long size = -1;
  FILE* file = fopen(path, "rb");
  if (file == NULL) return failed(path, strerror(errno));
  if (fseek(file, 0, SEEK_END) == 0) size = ftell(file);
  fclose(file);
  if (size < 0) return failed(path, "its size is not known");
  return read_range(path, 0, (uint64_t)size, out);
}

static int write_file(const char* path, const void* bytes, size_t size) {
  int is_written;
  FILE* file = fopen(path, "wb");
  if (file == NULL) return failed(path, strerror(errno));
  is_written = fwrite(bytes, 1, size, file) == size;
  if (fclose(file) != 0 || !is_written) return failed(path, strerror(errno));
  return 0;
}

static int dtype_of(const char* name) {
  int dtype;
  for (dtype = 0; bf16codecs_dtype_name(dtype) != NULL; ++dtype) {
    if (strcmp(bf16codecs_dtype_name(dtype), name) == 0) return dtype;
  }
  return -1;
}

static int encode(const char* from, const char* to, const char* dtype) {
  bf16codecs_encode_options options = BF16CODECS_ENCODE_OPTIONS_INIT;
  bf16codecs_error error;
  buffer raw, frame;
  uint64_t room;
  options.codec = BF16CODECS_CODEC_ARITHMETIC;
  options.dtype = dtype_of(dtype);
  if (options.dtype < 0) return failed(dtype, "there is no such dtype");
  if (read_file(from, &raw)) return 1;
  if (bf16codecs_encode_room(raw.size, &options, &room, &error)) return failed_to(from, &error);
  if (allocate(&frame, room)) return 1;
  if (bf16codecs_encode(raw.bytes, raw.size, &options, frame.bytes, frame.size, &frame.size,
                        &error)) {
    return failed_to(from, &error);
  }
  if (write_file(to, frame.bytes, frame.size)) return 1;
  printf("%lu bytes, %lu encoded\n", (unsigned long)raw.size, (unsigned long)frame.size);
  free(raw.bytes);
  free(frame.bytes);
  return 0;
}

static int decode(const char* from, const char* to) {
  bf16codecs_info info = BF16CODECS_INFO_INIT;
  bf16codecs_error error;
  buffer frame, raw;
  if (read_file(from, &frame)) return 1;
  if (bf16codecs_inspect(frame.bytes, frame.size, &info, &error)) return failed_to(from, &error);
  if (allocate(&raw, info.raw_size)) return 1;
  if (bf16codecs_decode(frame.bytes, frame.size, NULL, raw.bytes, raw.size, &raw.size, &error)) {
    return failed_to(from, &error);
  }
  if (write_file(to, raw.bytes, raw.size)) return 1;
  free(frame.bytes);
  free(raw.bytes);
  return 0;
}

/* Opens the frame in a file, of which it reads the head. */
static int open_frame(const char* path, bf16codecs_frame** frame, bf16codecs_info* info) {
  bf16codecs_error error;
  buffer head;
  uint64_t size;
  if (read_range(path, 0, BF16CODECS_PREFIX_SIZE, &head)) return 1;
  if (bf16codecs_head_size(head.bytes, head.size, &size, &error)) return failed_to(path, &error);
  free(head.bytes);
  /* A number from a file is no reason to allocate: a head takes its share of the frame. */
  if (size > 0x7fffffff) return failed(path, "its head is larger than this example reads");
  if (read_range(path, 0, size, &head)) return 1;
  if (bf16codecs_open(head.bytes, head.size, frame, &error) ||
      bf16codecs_frame_info(*frame, info, &error)) {
    return failed_to(path, &error);
  }
  free(head.bytes);
  return 0;
}

/* How a block's planes are stored, such as "rans_pairs 74312 stored 262144". */
static int print_planes(const char* path, const bf16codecs_frame* frame, uint64_t number,
                        const bf16codecs_block* block, uint64_t planes) {
  bf16codecs_plane plane[8];
  bf16codecs_error error;
  buffer bytes;
  uint64_t p;
  if (read_range(path, block->offset, block->size, &bytes)) return 1;
  if (bf16codecs_block_planes(frame, number, bytes.bytes, bytes.size, plane, &error)) {
    return failed_to(path, &error);
  }
  for (p = 0; p < planes; ++p) {
    printf(" %s %lu", bf16codecs_mode_name(plane[p].mode), (unsigned long)plane[p].size);
  }
  free(bytes.bytes);
  return 0;
}

static int print_info(const char* path) {
  bf16codecs_info info = BF16CODECS_INFO_INIT;
  bf16codecs_block block = BF16CODECS_BLOCK_INIT;
  bf16codecs_frame* frame;
  uint64_t b;
  int status = 0;
  if (open_frame(path, &frame, &info)) return 1;
  printf("version %d, %s of %s, %lu bytes in %lu\n", info.version, bf16codecs_codec_name(info.codec),
         bf16codecs_dtype_name(info.dtype), (unsigned long)info.raw_size,
         (unsigned long)info.frame_size);
  for (b = 0; b < info.blocks && status == 0; ++b) {
    bf16codecs_block_info(frame, b, &block, NULL);
    printf("block %lu at %lu:", (unsigned long)b, (unsigned long)block.offset);
    status = print_planes(path, frame, b, &block, info.item_size);
    putchar('\n');
  }
  bf16codecs_close(frame);
  return status;
}

static int decode_range(const char* from, uint64_t first, uint64_t last, const char* to) {
  bf16codecs_info info = BF16CODECS_INFO_INIT;
  bf16codecs_block begin = BF16CODECS_BLOCK_INIT, end = BF16CODECS_BLOCK_INIT;
  bf16codecs_error error;
  bf16codecs_frame* frame;
  buffer payload, raw;
  if (last <= first) return failed(from, "the range has no blocks");
  if (open_frame(from, &frame, &info)) return 1;
  if (bf16codecs_block_info(frame, first, &begin, &error) ||
      bf16codecs_block_info(frame, last - 1, &end, &error)) {
    return failed_to(from, &error);
  }
  if (read_range(from, begin.offset, end.offset + end.size - begin.offset, &payload)) return 1;
  if (allocate(&raw, end.raw_offset + end.raw_size - begin.raw_offset)) return 1;
  if (bf16codecs_decode_blocks(frame, payload.bytes, payload.size, first, last, NULL, raw.bytes,
                               raw.size, &raw.size, &error)) {
    return failed_to(from, &error);
  }
  if (write_file(to, raw.bytes, raw.size)) return 1;
  bf16codecs_close(frame);
  free(payload.bytes);
  free(raw.bytes);
  return 0;
}

int main(int argc, char** argv) {
  const char* const what = argc > 1 ? argv[1] : "";
  if (strcmp(what, "encode") == 0 && (argc == 4 || argc == 5)) {
    return encode(argv[2], argv[3], argc == 5 ? argv[4] : "bfloat16");
  }
  if (strcmp(what, "info") == 0 && argc == 3) return print_info(argv[2]);
  if (strcmp(what, "decode") == 0 && argc == 4) return decode(argv[2], argv[3]);
  if (strcmp(what, "range") == 0 && argc == 6) {
    return decode_range(argv[2], strtoul(argv[3], NULL, 10), strtoul(argv[4], NULL, 10), argv[5]);
  }
  fprintf(stderr,
          "usage: frames encode RAW FRAME [DTYPE]\n"
          "       frames info FRAME\n"
          "       frames decode FRAME RAW\n"
          "       frames range FRAME FIRST LAST RAW\n");
  return 2;
}
