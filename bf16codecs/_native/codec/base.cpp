#include "codec/base.h"

#include <algorithm>

#include "format/checksum.h"
#include "format/little_endian.h"
#include "threads/pool.h"

namespace bf16codecs {

namespace {

// The bytes that have a digest of their own: a block of the default size, so that the digest,
// folded, is the block's checksum as well.
constexpr size_t kSpan = kDefaultBlockBytes;

// Computes the digest of each span of bytes; the last span may be shorter.
std::vector<uint64_t> digest_spans(const uint8_t* bytes, size_t size, size_t span) {
  std::vector<uint64_t> digests(size / span + (size % span != 0));
  parallel_for(digests.size(), [&](size_t i, Workspace&) {
    digests[i] = digest(bytes + span * i, std::min(span, size - span * i));
  });
  return digests;
}

}  // namespace

BaseDigest digest_base(const Header& header, const uint8_t* base) {
  const size_t size = static_cast<size_t>(header.raw_size), tail = header.tail_size();
  const std::vector<uint64_t> spans = digest_spans(base, size, kSpan);
  const size_t block = header.block_items() * header.width();
  const bool is_alike = block == kSpan && tail == 0;
  const std::vector<uint64_t> blocks = is_alike ? spans : digest_spans(base, size - tail, block);
  std::vector<uint8_t> string(sizeof(uint64_t) * spans.size());
  for (size_t i = 0; i < spans.size(); ++i) store_le(string.data() + 8 * i, spans[i]);
  BaseDigest result{digest(string.data(), string.size()), {}};
  for (const uint64_t of_block : blocks) result.blocks.push_back(fold(of_block));
  return result;
}

}  // namespace bf16codecs
