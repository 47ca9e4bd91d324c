#pragma once

#include <string>
#include <vector>

namespace bf16codecs {

enum class JsonKind { string, integer, boolean, other };

struct JsonValue {
  JsonKind kind;
  std::string text;  // as it is written, of a string without its quotes
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

// The members of an object that has no arrays or objects inside, as the configurations of codecs
// are. Throws std::invalid_argument for anything else. Escapes are left as they are: no name has
// any.
std::vector<JsonMember> parse_flat_object(const char* text);

}  // namespace bf16codecs
