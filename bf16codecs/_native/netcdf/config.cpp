#include "netcdf/config.h"

#include <charconv>
#include <optional>
#include <stdexcept>

#include "hdf5/settings.h"
#include "netcdf/json.h"
#include "options.h"

namespace bf16codecs {
namespace {

constexpr unsigned kZstdDefault = 3;
constexpr char kAuto[] = "auto";

[[noreturn]] void refuse(const JsonMember& member, const std::string& allowed) {
  throw std::invalid_argument(member.key + " is " + allowed + ", not " + member.value.text);
}

template <typename Number, size_t n>
unsigned number_of(const Named<Number> (&names)[n], const JsonMember& member) {
  std::string allowed;
  for (const auto& named : names) {
    if (member.value.kind == JsonKind::string && member.value.text == named.name) {
      return static_cast<unsigned>(named.number);
    }
    allowed += (allowed.empty() ? "" : ", ") + std::string(named.name);
  }
  refuse(member, "one of " + allowed);
}

unsigned integer(const JsonMember& member, unsigned most) {
  const std::string& text = member.value.text;
  unsigned number = 0;
  if (member.value.kind == JsonKind::integer) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size() && number >= 1 && number <= most) {
      return number;
    }
  }
  refuse(member, "an integer between 1 and " + std::to_string(most));
}

unsigned dtype_of(const JsonMember& member) {
  const JsonValue& value = member.value;
  if (value.kind == JsonKind::string && value.text == kAuto) return kHdf5AutoDType;
  return number_of(kDTypeNames, member);
}

constexpr Named<unsigned> kPlaneNames[] = {{"field", 0}, {"byte", kHdf5ByByte}};

// The flag of a member that is true unless it is set.
unsigned flag_unless(const JsonMember& member, unsigned flag) {
  if (member.value.kind != JsonKind::boolean) refuse(member, "true or false");
  return member.value.text == "true" ? 0 : flag;
}

bool has_steps(Codec codec) {
  return codec == Codec::huffman || codec == Codec::arithmetic;
}

bool has_level(Codec codec) {
  return codec == Codec::arithmetic || codec == Codec::zstd;
}

unsigned level_of(const JsonMember& member, Codec codec) {
  return codec == Codec::zstd ? integer(member, kMaxZstdLevel) : number_of(kLevelNames, member);
}

void read_member(const JsonMember& member, Codec codec, std::vector<unsigned>& values) {
  const std::string& key = member.key;
  if (key == "id") {
    if (member.value.text != codec_id(codec)) refuse(member, codec_id(codec));
  } else if (key == "dtype") {
    values[kHdf5DTypeAt] = dtype_of(member);
  } else if (key == "by" && codec == Codec::split) {
    values[kHdf5FlagsAt] = number_of(kPlaneNames, member);
  } else if (key == "checksum" && codec != Codec::split) {
    values[kHdf5FlagsAt] |= flag_unless(member, kHdf5NoChecksums);
  } else if (key == "level" && has_level(codec)) {
    values[kHdf5LevelAt] = level_of(member, codec);
  } else if (key == "grid" && has_steps(codec)) {
    values[kHdf5FlagsAt] |= flag_unless(member, kHdf5NoGrids);
  } else if (key == "steps" && has_steps(codec)) {
    values[kHdf5StepsAt] = integer(member, kMaxSteps);
  } else {
    throw std::invalid_argument("unknown configuration: '" + key + "'");
  }
}

}  // namespace

std::string codec_id(Codec codec) {
  return std::string("bf16codecs.") + name_of(kCodecNames, codec);
}

std::vector<unsigned> values_from_config(const char* json, Codec codec) {
  std::vector<unsigned> values(kHdf5KnownValues);
  values[kHdf5CodecAt] = static_cast<unsigned>(codec);
  if (codec == Codec::zstd) values[kHdf5LevelAt] = kZstdDefault;
  for (const JsonMember& member : parse_flat_object(json)) read_member(member, codec, values);
  if (values[kHdf5StepsAt] == 1) values[kHdf5StepsAt] = 0;
  while (values.size() > kHdf5DTypeAt + 1 && values.back() == 0) values.pop_back();
  return values;
}

std::string config_from_values(std::span<const unsigned> values) {
  if (!values.empty() && values[kHdf5CodecAt] == static_cast<unsigned>(Codec::zstd)) {
    throw std::invalid_argument(kNoZstandard);
  }
  std::vector<unsigned> known(values.begin(), values.end());
  const bool is_auto = known.size() > kHdf5DTypeAt && known[kHdf5DTypeAt] == kHdf5AutoDType;
  if (is_auto) known[kHdf5DTypeAt] = static_cast<unsigned>(DType::float32);
  const bf16codecs_encode_options options = hdf5_settings(known.size(), known.data());
  const Codec codec = static_cast<Codec>(options.codec);
  const std::string dtype =
      is_auto ? kAuto : name_of(kDTypeNames, static_cast<DType>(options.dtype));
  std::string json = R"({"id": ")" + codec_id(codec) + R"(", "dtype": ")" + dtype + '"';
  if (codec == Codec::split) {
    return json + R"(, "by": ")" + (options.by_byte ? "byte" : "field") + R"("})";
  }
  if (codec == Codec::arithmetic) {
    json += R"(, "level": ")" + std::string(name_of(kLevelNames, options.level)) + '"';
  }
  json += std::string(R"(, "checksum": )") + (options.no_checksums ? "false" : "true");
  if (options.steps > 1) json += R"(, "steps": )" + std::to_string(options.steps);
  if (options.no_grids) json += R"(, "grid": false)";
  return json + "}";
}

}  // namespace bf16codecs
