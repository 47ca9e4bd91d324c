#include "codec/base.h"

#include <algorithm>

#include "format/checksum.h"
#include "format/little_endian.h"
#include "threads/pool.h"

namespace bf16codecs {

BaseDigest digest_base(const Header& header, const uint8_t* base) {
  const size_t blocks = static_cast<size_t>(header.blocks());
  const size_t block = header.block_items() * header.width();
  const size_t whole = static_cast<size_t>(header.items()) * header.width();
  BaseDigest result{0, std::vector<uint32_t>(blocks)};
  std::vector<uint8_t> digests(sizeof(uint64_t) * blocks);
  parallel_for(blocks, [&](size_t b, Workspace&) {
    const uint64_t of_block = digest(base + block * b, std::min(block, whole - block * b));
    store_le(digests.data() + sizeof(uint64_t) * b, of_block);
    result.blocks[b] = fold(of_block);
  });
  digests.insert(digests.end(), base + whole, base + header.raw_size);
  result.digest = digest(digests.data(), digests.size());
  return result;
}

}  // namespace bf16codecs
