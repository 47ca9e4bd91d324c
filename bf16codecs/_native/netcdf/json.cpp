#include "netcdf/json.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string_view>

namespace bf16codecs {
namespace {

class Reader {
 public:
  explicit Reader(const char* text) : at_(text) {}

  // Takes `wanted` if it comes next.
  bool take(char wanted) {
    skip_blanks();
    if (*at_ != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted) {
    if (!take(wanted)) fail();
  }

  void expect_end() {
    skip_blanks();
    if (*at_ != '\0') fail();
  }

  std::string string() {
    expect('"');
    const char* const start = at_;
    while (*at_ != '"') {
      if (*at_ == '\\') ++at_;
      if (*at_ == '\0') fail();
      ++at_;
    }
    return std::string(start, at_++);
  }

  JsonValue value() {
    skip_blanks();
    if (*at_ == '"') return {JsonKind::string, string()};
    const std::string word = take_word();
    if (word == "true" || word == "false") return {JsonKind::boolean, word};
    if (word == "null") return {JsonKind::other, word};
    return {is_integer(word) ? JsonKind::integer : JsonKind::other, word};
  }

 private:
  [[noreturn]] static void fail() {
    throw std::invalid_argument("its configuration is not a JSON object of plain values");
  }

  static bool is_integer(std::string_view word) {
    if (word.starts_with('-')) word.remove_prefix(1);
    return !word.empty() && std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
  }

  void skip_blanks() { at_ += std::strspn(at_, " \t\r\n"); }

  std::string take_word() {
    const size_t size = std::strcspn(at_, " \t\r\n,:{}[]\"");
    if (size == 0) fail();
    const char* const start = at_;
    at_ += size;
    return std::string(start, at_);
  }

  const char* at_;
};

}  // namespace

std::vector<JsonMember> parse_flat_object(const char* text) {
  Reader reader(text);
  std::vector<JsonMember> members;
  reader.expect('{');
  if (!reader.take('}')) {
    do {
      std::string key = reader.string();
      reader.expect(':');
      members.push_back({std::move(key), reader.value()});
    } while (reader.take(','));
    reader.expect('}');
  }
  reader.expect_end();
  return members;
}

}  // namespace bf16codecs
