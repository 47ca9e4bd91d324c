// A small library for each codec but Huffman, since netCDF takes one codec from each library. It
// loads the plugin in the same folder, which has the implementation.

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include <cstdio>
#include <string>

#include "format/names.h"
#include "netcdf/abi.h"

// Set by the build: the codec's number, and the plugin's file name.
#if !defined(BF16CODECS_NETCDF_CODEC) || !defined(BF16CODECS_PLUGIN_FILE)
#error "see CMakeLists.txt"
#endif

namespace bf16codecs {
namespace {

constexpr unsigned kCodec = BF16CODECS_NETCDF_CODEC;

// The plugin is never unloaded: netCDF keeps pointers into it.
FindNetcdfPlugin find_function() {
  static const char anchor = 0;
#if defined(_WIN32)
  HMODULE self = nullptr;
  GetModuleHandleExW(
      GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
      reinterpret_cast<LPCWSTR>(&anchor), &self);
  std::wstring path(32768, L'\0');
  path.resize(GetModuleFileNameW(self, path.data(), static_cast<DWORD>(path.size())));
  const std::string file = BF16CODECS_PLUGIN_FILE;
  path.replace(path.find_last_of(L"\\/") + 1, std::wstring::npos,
               std::wstring(file.begin(), file.end()));
  const HMODULE plugin = LoadLibraryW(path.c_str());
  if (plugin == nullptr) return nullptr;
  return reinterpret_cast<FindNetcdfPlugin>(GetProcAddress(plugin, kNetcdfPluginFunction));
#else
  Dl_info self;
  if (dladdr(&anchor, &self) == 0) return nullptr;
  std::string path = self.dli_fname;
  path.replace(path.find_last_of('/') + 1, std::string::npos, BF16CODECS_PLUGIN_FILE);
  void* const plugin = dlopen(path.c_str(), RTLD_NOW);
  void* const function = plugin == nullptr ? nullptr : dlsym(plugin, kNetcdfPluginFunction);
  if (function == nullptr) {
    const char* const reason = dlerror();
    std::fprintf(
        stderr,
        "bf16codecs: no codec for netCDF, which wants the plugin of the same release in the"
        " same folder: %s\n",
        reason == nullptr ? path.c_str() : reason);
  }
  return reinterpret_cast<FindNetcdfPlugin>(function);
#endif
}

size_t fail(unsigned, size_t, const unsigned[], size_t, size_t*, void**) {
  std::fputs("bf16codecs: " BF16CODECS_PLUGIN_FILE " is not in the same folder\n", stderr);
  return 0;
}

// netCDF does not accept null. No array names a codec without a name.
const NetcdfPlugin missing = {{kHdf5FilterClassVersion, netcdf_filter_id(kHdf5FilterIds[0], kCodec),
                               1, 1, "bf16codecs, missing", nullptr, nullptr, fail},
                              {kNetcdfCodecVersion, kNetcdfHdf5Codec, "",
                               static_cast<unsigned>(netcdf_filter_id(kHdf5FilterIds[0], kCodec)),
                               nullptr, nullptr, nullptr, nullptr, nullptr}};

const NetcdfPlugin& plugin() {
  static const FindNetcdfPlugin function = find_function();
  const NetcdfPlugin* const found = function != nullptr ? function(kCodec) : nullptr;
  return found != nullptr ? *found : missing;
}

}  // namespace
}  // namespace bf16codecs

extern "C" BF16CODECS_PLUGIN_EXPORT int H5PLget_plugin_type() {
  return bf16codecs::kHdf5PluginFilter;
}

extern "C" BF16CODECS_PLUGIN_EXPORT const void* H5PLget_plugin_info() {
  return &bf16codecs::plugin().filter;
}

extern "C" BF16CODECS_PLUGIN_EXPORT const void* NCZ_get_codec_info() {
  return &bf16codecs::plugin().codec;
}
