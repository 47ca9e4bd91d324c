// Run lengths: any bytes come back, from no more than the stated size; what is decoded has the size
// that was found before, and an error is a documented one.

#include "run_length/run_length.h"

#include "core.h"

namespace bf16codecs::fuzz {
namespace {

using run_length::decode;
using run_length::decoded_size;

Bytes decoded(const Bytes& encoded) {
  Bytes raw(static_cast<size_t>(decoded_size(encoded.data(), encoded.size())));
  decode(encoded.data(), encoded.size(), raw.data(), raw.size());
  return raw;
}

void test_encode(const Bytes& raw) {
  Bytes encoded(static_cast<size_t>(run_length::bound(raw.size())));
  encoded.resize(run_length::encode(raw.data(), raw.size(), encoded.data()));
  encoded.shrink_to_fit();
  CHECK(decoded(encoded) == raw);
}

// Room of another size than the data have, as when they change meanwhile.
void test_room(const Bytes& encoded, size_t room) {
  Bytes raw(room);
  const std::string error =
      error_of([&] { decode(encoded.data(), encoded.size(), raw.data(), room); });
  CHECK(error.starts_with("corrupt: "));
}

void test_decode(const Bytes& encoded) {
  Bytes raw;
  const std::string error = error_of([&] { raw = decoded(encoded); });
  if (!error.empty()) {
    Bytes room(1000);
    CHECK(!error_of([&] { decode(encoded.data(), encoded.size(), room.data(), 1000); }).empty());
    return;
  }
  CHECK(raw.size() <= 85 * encoded.size());
  test_encode(raw);
  test_room(encoded, raw.size() + 1);
  if (!raw.empty()) test_room(encoded, raw.size() - 1);
}

}  // namespace
}  // namespace bf16codecs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bf16codecs;
  const fuzz::Bytes bytes(data, data + size);
  fuzz::test_encode(bytes);
  fuzz::test_decode(bytes);
  return 0;
}
