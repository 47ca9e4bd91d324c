#pragma once

// Functions of the libhdf5 that called the plugin. The plugin links none, since a process may have
// several, hidden from each other.

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace bf16codecs {

class Library {
 public:
  // The library or program that contains `address`.
  explicit Library(const void* address) {
#if defined(_WIN32)
    GetModuleHandleExA(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, static_cast<LPCSTR>(address),
                       &handle_);
#else
    Dl_info info;
    if (dladdr(address, &info) != 0) handle_ = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
#endif
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (handle_ == nullptr) return;
#if defined(_WIN32)
    FreeLibrary(handle_);
#else
    dlclose(handle_);
#endif
  }

  // Sets `function` to the function of this name; returns false if there is no such function.
  template <typename Function>
  bool find(const char* name, Function*& function) const {
    if (handle_ == nullptr) return false;
#if defined(_WIN32)
    function = reinterpret_cast<Function*>(GetProcAddress(handle_, name));
#else
    function = reinterpret_cast<Function*>(dlsym(handle_, name));
#endif
    return function != nullptr;
  }

 private:
#if defined(_WIN32)
  HMODULE handle_ = nullptr;
#else
  void* handle_ = nullptr;
#endif
};

// The version of a library, such as 110 of 1.10, by its H5get_libversion().
inline unsigned version_of(int (*get_libversion)(unsigned*, unsigned*, unsigned*)) {
  unsigned major = 0, minor = 0, release = 0;
  get_libversion(&major, &minor, &release);
  return 100 * major + minor;
}

}  // namespace bf16codecs
