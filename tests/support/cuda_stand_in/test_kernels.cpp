// The kernels of test_kernels.cu, and those of the package in lockstep, for the stand-in of the
// driver.

#include <cstdint>
#include <cstring>

extern "C" void bf16codecs_lockstep_launch(const char* kernel, uint32_t warps, void** arguments);

extern "C" __attribute__((visibility("default"))) void bf16codecs_host_launch(const char* kernel,
                                                                              uint32_t warps,
                                                                              void** arguments) {
  if (std::strcmp(kernel, "copy_bytes") == 0) {
    const uint8_t* in = *static_cast<const uint8_t**>(arguments[0]);
    uint8_t* out = *static_cast<uint8_t**>(arguments[1]);
    const uint32_t n = *static_cast<uint32_t*>(arguments[2]);
    for (uint32_t i = 0; i < n && i < 32 * warps; ++i) out[i] = in[i];
  } else if (std::strcmp(kernel, "count_warps") == 0) {
    **static_cast<uint32_t**>(arguments[0]) += warps;
  } else {
    bf16codecs_lockstep_launch(kernel, warps, arguments);
  }
}
