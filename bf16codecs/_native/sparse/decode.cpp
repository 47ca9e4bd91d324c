#include <algorithm>
#include <string>

#include "format/errors.h"
#include "format/little_endian.h"
#include "sparse/payload.h"
#include "sparse/sparse.h"

namespace bf16codecs::sparse {
namespace {

[[noreturn]] void corrupt(const char* what) {
  throw CorruptDataError(std::string("sparse plane: ") + what);
}

}  // namespace

Reader::Reader(const uint8_t* payload, size_t size, size_t n, uint8_t* room) : room_(room) {
  if (size < kHead) corrupt("shorter than its head");
  const uint8_t flags = payload[kFlagsAt];
  const size_t zeros = load_le<uint32_t>(payload + kZerosAt);
  const uint64_t exceptions = load_le<uint32_t>(payload + kExceptionsAt);
  state_.zero = payload[kZeroAt];
  state_.value = payload[kValueAt];
  state_.has_signs = (flags & kSignFlag) != 0;
  if ((flags & ~kSignFlag) != 0) corrupt("an unknown flag");
  if (state_.has_signs && (state_.value & 1) != 0) corrupt("a sign in the symbol of zeros");
  if (zeros == 0 || zeros > n) corrupt("no zeros, or more than items");
  const size_t sign_bytes = state_.has_signs ? (zeros + 7) / 8 : 0;
  if (size != kHead + (n - zeros) + sign_bytes + kException * exceptions) {
    corrupt("a size other than that of its parts");
  }
  state_.symbols = payload + kHead;
  symbols_end_ = state_.signs = state_.symbols + (n - zeros);
  state_.sign = 0;
  signs_end_ = state_.has_signs ? zeros : 0;
  exception_ = state_.signs + sign_bytes;
  exceptions_end_ = payload + size;
  if (signs_end_ % 8 != 0 && exception_[-1] >> signs_end_ % 8 != 0) {
    corrupt("bits after the last sign bit");
  }
}

// Makes n symbols and sign bits, and a margin after them, readable: the last ones are moved to
// memory of their own, which stays readable up to the plane's end. Callers check after each use
// that the next one is not past the end.
void Reader::provide(size_t n) {
  const size_t symbols = static_cast<size_t>(symbols_end_ - state_.symbols);
  if (!has_last_symbols_ && symbols < n + kSparseMargin) {
    std::fill(std::copy_n(state_.symbols, symbols, room_), room_ + kSymbolRoom, uint8_t{0});
    state_.symbols = room_;
    symbols_end_ = room_ + symbols;
    has_last_symbols_ = true;
  }
  const size_t used = state_.sign / 8, signs = (signs_end_ + 7) / 8 - used;
  if (state_.has_signs && !has_last_signs_ && signs < n / 8 + 1 + kSparseMargin) {
    uint8_t* const begin = room_ + kSymbolRoom;
    std::fill(std::copy_n(state_.signs + used, signs, begin), begin + kSignRoom, uint8_t{0});
    state_.signs = begin;
    state_.sign -= 8 * used;
    signs_end_ -= 8 * used;
    has_last_signs_ = true;
  }
}

void Reader::replace_exceptions(const uint8_t* first, size_t n, uint8_t* plane) {
  while (exception_ != exceptions_end_) {
    const size_t item = load_le<uint32_t>(exception_);
    const uint8_t symbol = exception_[4];
    if (item >= at_ + n) return;
    if (item < least_) corrupt("exceptions that do not ascend");
    const size_t i = item - at_;
    if (first[i] != state_.zero || plane[i] != state_.value)
      corrupt("an exception that is no zero");
    if ((symbol & ~(state_.has_signs ? 1 : 0)) == state_.value)
      corrupt("an exception that is none");
    plane[i] = symbol;
    least_ = item + 1;
    exception_ += kException;
  }
}

void Reader::decode(const uint8_t* first, size_t n, uint8_t* plane) {
  provide(n);
  kernels().sparse->expand(state_, first, n, plane);
  if (state_.symbols > symbols_end_ || state_.sign > signs_end_) {
    corrupt("another number of zeros than it states");
  }
  replace_exceptions(first, n, plane);
  at_ += n;
}

void Reader::finish() const {
  if (state_.symbols != symbols_end_) corrupt("another number of zeros than it states");
  if (exception_ != exceptions_end_) corrupt("exceptions past its end");
}

}  // namespace bf16codecs::sparse
