#include "image.h"

#include <elf.h>

#include <cstdint>
#include <cstring>

namespace stand_in {
namespace {

template <typename T>
T read(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// The attributes of a kernel: a format, a name, and a value of two bytes, or its size and itself.
std::vector<Parameter> parameters_of(const char* info, std::size_t size) {
  constexpr char kSized = 4, kParameter = 0x17;
  std::vector<Parameter> parameters;
  for (std::size_t at = 0; at + 4 <= size;) {
    const auto value = read<std::uint16_t>(info + at + 2);
    if (info[at] == kSized && info[at + 1] == kParameter) {
      const char* entry = info + at + 4;
      const auto ordinal = read<std::uint16_t>(entry + 4);
      if (parameters.size() <= ordinal) parameters.resize(ordinal + 1);
      parameters[ordinal] = {read<std::uint16_t>(entry + 6), read<std::uint32_t>(entry + 8) >> 18};
    }
    at += 4 + (info[at] == kSized ? value : 0);
  }
  return parameters;
}

Image read_cubin(const char* data) {
  const auto header = read<Elf64_Ehdr>(data);
  const auto section = [&](unsigned i) {
    return read<Elf64_Shdr>(data + header.e_shoff + std::size_t{i} * header.e_shentsize);
  };
  const char* names = data + section(header.e_shstrndx).sh_offset;
  Image image;
  // Where the architecture is depends on the version of the format.
  const bool is_newer = data[EI_ABIVERSION] >= 8;
  image.arch = (is_newer ? header.e_flags >> 8 : header.e_flags) & 0xFF;
  const std::string prefix = ".nv.info.";
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    const std::string name = names + section(i).sh_name;
    if (name.rfind(prefix, 0) == 0) {
      image.kernels[name.substr(prefix.size())] =
          parameters_of(data + section(i).sh_offset, section(i).sh_size);
    }
  }
  return image;
}

// `.visible .entry name(` and `.param .u64 name_param_0,` for each parameter.
Image read_ptx(const std::string& text) {
  const std::string entry = ".entry ", parameter = ".param .";
  Image image;
  for (auto at = text.find(entry); at != text.npos; at = text.find(entry, at)) {
    at += entry.size();
    const auto open = text.find('(', at), close = text.find(')', open);
    auto& parameters = image.kernels[text.substr(at, open - at)];
    std::size_t offset = 0;
    for (auto p = text.find(parameter, open); p < close; p = text.find(parameter, p)) {
      p += parameter.size() + 1;  // behind u, s, b or f
      const std::size_t size = std::stoul(text.substr(p, 2)) / 8;
      offset = (offset + size - 1) / size * size;
      parameters.push_back({offset, size});
      offset += size;
    }
  }
  return image;
}

}  // namespace

std::optional<Image> read_image(const char* data) {
  if (std::memcmp(data, ELFMAG, SELFMAG) == 0) return read_cubin(data);
  const std::string text = data;
  if (text.find(".version") != std::string::npos) return read_ptx(text);
  return std::nullopt;
}

}  // namespace stand_in
