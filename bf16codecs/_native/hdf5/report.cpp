#include "hdf5/report.h"

#include <atomic>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>

namespace bf16codecs {

void report(const char* failure, const char* reason) noexcept {
  static std::atomic<size_t> last{0};
  try {
    const std::string line = std::string("bf16codecs: ") + failure + ": " + reason + "\n";
    const size_t hash = std::hash<std::string>()(line);
    if (last.exchange(hash) != hash) std::fputs(line.c_str(), stderr);
  } catch (const std::exception&) {
    std::fputs("bf16codecs: not enough memory\n", stderr);
  }
}

}  // namespace bf16codecs
