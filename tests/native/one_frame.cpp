// Encodes and decodes one frame, for callgrind, which counts the instructions of each kernel:
//
//     valgrind --tool=callgrind --collect-atstart=no --toggle-collect=encode_it one_frame ARGUMENTS
//
// and likewise --toggle-collect=decode_it. ARGUMENTS are CODEC LEVEL FILE ROW [BASE].
//
// CODEC is huffman or arithmetic, LEVEL fast or best. FILE has bfloat16 items in rows of ROW items,
// and BASE those that they are coded as differences to. BF16CODECS_ISA chooses the instruction set.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "codec.h"
#include "threads/pool.h"

namespace {

using bf16codecs::EncodeOptions;
using Bytes = std::vector<uint8_t>;

Bytes read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

const uint8_t* data_of(const Bytes& base) {
  return base.empty() ? nullptr : base.data();
}

}  // namespace

// Of this name for callgrind, which finds functions by theirs.
extern "C" [[gnu::noinline]] size_t encode_it(const Bytes& raw, const Bytes& base,
                                              const EncodeOptions& options, Bytes& frame) {
  return bf16codecs::encode(raw.data(), raw.size(), options, data_of(base), frame.data());
}

extern "C" [[gnu::noinline]] void decode_it(const Bytes& frame, size_t size, const Bytes& base,
                                            Bytes& out) {
  const bf16codecs::FrameIndex index = bf16codecs::read_index(frame.data(), size);
  const uint8_t* const payload = frame.data() + index.offsets[0];
  bf16codecs::decode_frame(index, payload, nullptr, data_of(base), out.data());
}

int main(int argc, char** argv) {
  if (argc < 5) return std::fprintf(stderr, "CODEC LEVEL FILE ROW [BASE]\n"), 2;
  bf16codecs::set_num_threads(1);
  EncodeOptions options;
  const bool is_huffman = argv[1] == std::string("huffman");
  options.codec = is_huffman ? bf16codecs::Codec::huffman : bf16codecs::Codec::arithmetic;
  options.level = argv[2] == std::string("best") ? bf16codecs::kBest : bf16codecs::kFast;
  options.row = std::strtoul(argv[4], nullptr, 10);
  const Bytes raw = read(argv[3]), base = argc > 5 ? read(argv[5]) : Bytes();
  options.has_base = !base.empty();
  if (options.has_base && base.size() != raw.size()) return std::fprintf(stderr, "BASE\n"), 2;
  Bytes frame(bf16codecs::encode_room(raw.size(), options)), out(raw.size());
  for (int i = 0; i < 2; ++i) {  // memory is touched once
    const size_t size = encode_it(raw, base, options, frame);
    decode_it(frame, size, base, out);
    std::printf("%.4f bits\n", 16.0 * static_cast<double>(size) / static_cast<double>(raw.size()));
  }
  return out == raw ? 0 : 1;
}
