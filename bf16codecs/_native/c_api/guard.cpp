#include "c_api/guard.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>

namespace bf16codecs::c_api {
namespace {

bf16codecs_status tell(bf16codecs_error* error, bf16codecs_status status,
                       const char* message) noexcept {
  if (error == nullptr) return status;
  error->status = status;
  const size_t size = std::min(std::strlen(message), sizeof error->message - 1);
  std::memcpy(error->message, message, size);
  error->message[size] = '\0';
  return status;
}

}  // namespace

void clear(bf16codecs_error* error) noexcept {
  tell(error, BF16CODECS_OK, "");
}

bf16codecs_status status_of_exception(bf16codecs_error* error) noexcept {
  try {
    throw;
  } catch (const CorruptDataError& e) {
    return tell(error, BF16CODECS_CORRUPT, e.what());
  } catch (const TruncatedDataError& e) {
    return tell(error, BF16CODECS_TRUNCATED, e.what());
  } catch (const BaseMismatchError& e) {
    return tell(error, BF16CODECS_BASE_MISMATCH, e.what());
  } catch (const UnsupportedVersionError& e) {
    return tell(error, BF16CODECS_UNSUPPORTED_VERSION, e.what());
  } catch (const CodecError& e) {
    return tell(error, BF16CODECS_UNSUPPORTED, e.what());
  } catch (const NoRoomError& e) {
    return tell(error, BF16CODECS_NO_ROOM, e.what());
  } catch (const std::invalid_argument& e) {
    return tell(error, BF16CODECS_INVALID_ARGUMENT, e.what());
  } catch (const std::out_of_range& e) {
    return tell(error, BF16CODECS_INVALID_ARGUMENT, e.what());
  } catch (const std::bad_alloc&) {
    return tell(error, BF16CODECS_NO_MEMORY, "not enough memory");
  } catch (const std::exception& e) {
    return tell(error, BF16CODECS_NO_MEMORY, e.what());
  } catch (...) {
    return tell(error, BF16CODECS_NO_MEMORY, "an unknown failure");
  }
}

}  // namespace bf16codecs::c_api

extern "C" const char* bf16codecs_status_name(int status) {
  switch (status) {
    case BF16CODECS_OK:
      return "ok";
    case BF16CODECS_CORRUPT:
      return "corrupt";
    case BF16CODECS_TRUNCATED:
      return "truncated";
    case BF16CODECS_BASE_MISMATCH:
      return "base mismatch";
    case BF16CODECS_UNSUPPORTED_VERSION:
      return "unsupported version";
    case BF16CODECS_UNSUPPORTED:
      return "unsupported";
    case BF16CODECS_INVALID_ARGUMENT:
      return "invalid argument";
    case BF16CODECS_NO_ROOM:
      return "no room";
    case BF16CODECS_NO_MEMORY:
      return "no memory";
    default:
      return nullptr;
  }
}
