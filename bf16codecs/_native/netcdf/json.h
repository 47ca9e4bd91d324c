#pragma once

#include <string>
#include <vector>

namespace bf16codecs {

enum class JsonKind { string, integer, boolean, other };

struct JsonValue {
  JsonKind kind;
  std::string text;  // as written; of a string, without the quotes
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

// The members of an object without nested arrays or objects, such as a codec's configuration.
// Throws std::invalid_argument for anything else. Escapes are not decoded: no known name contains
// any.
std::vector<JsonMember> parse_flat_object(const char* text);

}  // namespace bf16codecs
