#include "bindings/run_length.h"

#include "bindings/buffers.h"
#include "bindings/gil.h"
#include "run_length/run_length.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace bf16codecs {
namespace {

nb::bytes encode(nb::handle raw_object) {
  const Source raw(raw_object);
  NewBytes encoded(run_length::bound(raw.size()));
  size_t size = 0;
  {
    const ReleasedGil released;
    size = run_length::encode(raw.data(), raw.size(), encoded.data());
  }
  return encoded.shrunk_to(size);
}

uint64_t size_of(const Source& encoded) {
  const ReleasedGil released;
  return run_length::decoded_size(encoded.data(), encoded.size());
}

nb::bytes decode(nb::handle encoded_object) {
  const Source encoded(encoded_object);
  const uint64_t size = size_of(encoded);
  NewBytes raw(size);
  {
    const ReleasedGil released;
    run_length::decode(encoded.data(), encoded.size(), raw.data(), size);
  }
  return raw.whole();
}

void decode_into(nb::handle encoded_object, nb::handle out_object) {
  const Source encoded(encoded_object);
  const Target out(out_object);
  check_room(out, size_of(encoded));
  const ReleasedGil released;
  run_length::decode(encoded.data(), encoded.size(), out.data(), out.size());
}

}  // namespace

void publish_run_length(nb::module_& module) {
  module.def("rle_encode", &encode, "src"_a);
  module.def("rle_decode", &decode, "src"_a);
  module.def("rle_decode_into", &decode_into, "src"_a, "out"_a);
  module.def(
      "rle_decoded_size", [](nb::handle object) { return size_of(Source(object)); }, "src"_a);
}

}  // namespace bf16codecs
