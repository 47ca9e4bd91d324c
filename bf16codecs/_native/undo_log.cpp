#include "undo_log.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/kernels.h"

namespace bf16codecs {
namespace {

// Memory that a log keeps: enough for all of the 64 MiB that an update works on at a time, and for
// what segments have left.
constexpr size_t kKeptWords = (size_t{1} << 26) / sizeof(uint64_t) * 5 / 4;

constexpr size_t kSegmentWords = (size_t{1} << 21) / sizeof(uint64_t);

// Bytes of which one mask tells the words that have changed.
constexpr size_t kWord = sizeof(uint64_t), kGroup = 64 * kWord;
constexpr uint64_t kAll = ~uint64_t{0};

// If more words of a group have changed, all are copied: one by one, an update that changes all
// values took a twentieth longer.
constexpr int kMany = 32;

// What some memory had: the address and size of all of it; a mask for each whole group of words;
// what these words were; and all of the rest.
struct Record {
  static constexpr size_t kHead = 2;

  uint64_t* const begin;

  uint8_t* memory() const { return reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(begin[0])); }
  size_t size() const { return static_cast<size_t>(begin[1]); }
  size_t groups() const { return size() / kGroup; }
  uint64_t* masks() const { return begin + kHead; }
  uint64_t* words() const { return masks() + groups(); }

  static size_t most_words(size_t n) { return kHead + n / kGroup + n / kWord + 1; }

  void set(const uint8_t* memory, size_t n) const {
    begin[0] = reinterpret_cast<uintptr_t>(memory);
    begin[1] = n;
  }

  // Calls function<bytes>(their place in the memory, their place in the record) for each word that
  // the masks have, and for each group of which they have all. Returns where the rest is in the
  // record.
  template <typename Function>
  uint64_t* for_each_piece(Function function) const {
    uint64_t* word = words();
    for (size_t g = 0; g < groups(); ++g) {
      uint64_t mask = masks()[g];
      if (mask == kAll) {
        function.template operator()<kGroup>(kGroup * g, word);
        word += kGroup / kWord;
        continue;
      }
      for (; mask != 0; mask &= mask - 1) {
        const auto i = static_cast<size_t>(std::countr_zero(mask));
        function.template operator()<kWord>(kGroup * g + kWord * i, word++);
      }
    }
    return word;
  }

  // The rest's size, and where a record with this rest ends.
  size_t rest() const { return size() % kGroup; }
  uint64_t* end(uint64_t* of_rest) const { return of_rest + (rest() + 7) / kWord; }

  // Writes what there was; returns the record's end.
  uint64_t* put_back() const {
    uint64_t* const of_rest = for_each_piece([this]<size_t kBytes>(size_t at, const uint64_t* old) {
      std::memcpy(memory() + at, old, kBytes);
    });
    std::memcpy(memory() + size() - rest(), of_rest, rest());
    return end(of_rest);
  }
};

// Replaces bytes and makes the record; returns its end.
uint64_t* replace_and_record(uint8_t* memory, const uint8_t* items, size_t n,
                             const Record& record) {
  record.set(memory, n);
  uint64_t* const masks = record.masks();
  kernels().differing_words(memory, items, record.groups(), masks);
  for (size_t g = 0; g < record.groups(); ++g) {
    if (std::popcount(masks[g]) > kMany) masks[g] = kAll;
  }
  uint64_t* const of_rest = record.for_each_piece([=]<size_t kBytes>(size_t at, uint64_t* old) {
    std::memcpy(old, memory + at, kBytes);
    std::memcpy(memory + at, items + at, kBytes);
  });
  const size_t rest = record.rest();
  std::memcpy(of_rest, memory + n - rest, rest);
  std::memcpy(memory + n - rest, items + n - rest, rest);
  return record.end(of_rest);
}

}  // namespace

UndoLog::Segment& UndoLog::with_room(size_t size) {
  for (; filled_ < segments_.size(); ++filled_) {
    Segment& segment = segments_[filled_];
    if (segment.capacity - segment.size >= size) return segment;
  }
  const size_t capacity = std::max(size, kSegmentWords);
  return segments_.emplace_back(
      Segment{std::unique_ptr<uint64_t[]>(new uint64_t[capacity]), capacity});
}

void UndoLog::replace(uint8_t* memory, const uint8_t* items, size_t n, Scratch& room) {
  const Record record{
      reinterpret_cast<uint64_t*>(room.at_least(sizeof(uint64_t) * Record::most_words(n)))};
  const auto size =
      static_cast<size_t>(replace_and_record(memory, items, n, record) - record.begin);
  const Lock lock(mutex_);
  try {
    Segment& segment = with_room(size);
    std::copy_n(record.begin, size, segment.words.get() + segment.size);
    segment.size += size;
  } catch (...) {
    record.put_back();
    throw;
  }
}

void UndoLog::add(const uint8_t* memory, size_t n) {
  const Lock lock(mutex_);
  Segment& segment = with_room(Record::most_words(n));
  const Record record{segment.words.get() + segment.size};
  record.set(memory, n);
  std::fill_n(record.masks(), record.groups(), kAll);
  std::memcpy(record.words(), memory, n);
  segment.size +=
      static_cast<size_t>(record.end(record.words() + record.groups() * 64) - record.begin);
}

void UndoLog::undo() {
  const Lock lock(mutex_);
  // In any order: no memory is overwritten twice.
  for (const Segment& segment : segments_) {
    uint64_t* const end = segment.words.get() + segment.size;
    for (uint64_t* next = segment.words.get(); next != end;) next = Record{next}.put_back();
  }
}

void UndoLog::clear() {
  const Lock lock(mutex_);
  size_t kept = 0;
  const auto is_too_much = [&](const Segment& segment) {
    return (kept += segment.capacity) > kKeptWords;
  };
  segments_.erase(std::find_if(segments_.begin(), segments_.end(), is_too_much), segments_.end());
  for (Segment& segment : segments_) segment.size = 0;
  filled_ = 0;
}

}  // namespace bf16codecs
