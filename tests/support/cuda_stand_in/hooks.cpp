// What tests tell the stand-in, and ask it.

#include <cstdio>
#include <string_view>

#include "machine.h"

using namespace stand_in;

#define HOOK(type) extern "C" __attribute__((visibility("default"))) type
#define LOCK const std::lock_guard<std::recursive_mutex> lock(machine().mutex)

// The n-th next call of a function fails; no function, none does.
HOOK(void) stand_in_fail(const char* function, long n, Result result) {
  LOCK;
  machine().failure = {function, n, result};
}

HOOK(long) stand_in_calls(const char* function) {
  LOCK;
  return machine().calls[function];
}

// How many there are: blocks of memory, streams, events.
HOOK(long) stand_in_live(const char* kind) {
  LOCK;
  const std::string_view of = kind;
  const std::size_t n = of == "blocks"    ? machine().blocks.size()
                        : of == "streams" ? machine().streams.size()
                                          : machine().events.size();
  return static_cast<long>(n);
}

// What was done last that no program should do, since this was asked last.
HOOK(void) stand_in_misuse(char* text, std::size_t size) {
  LOCK;
  std::snprintf(text, size, "%s", machine().misuse.c_str());
  machine().misuse.clear();
}

HOOK(void) stand_in_set_memory(std::size_t bytes) {
  LOCK;
  machine().memory = bytes;
}
