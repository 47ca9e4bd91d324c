#include "codec/device_plan.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "codec/checked.h"
#include "format/errors.h"
#include "grid/keys.h"
#include "huffman/streams.h"

namespace bf16codecs {
namespace {

bool is_on_device(Mode mode) {
  return mode != Mode::zstd && mode != Mode::scale && mode != Mode::tiles && mode != Mode::sparse;
}

// The size of a section's columns, rounded up to where the next ones may begin.
size_t columns_size(const grid::Grid& grid) {
  return (grid.columns.size() * sizeof(int16_t) + 7) / 8 * 8;
}

cuda::Section section_of(const delta::Model& model, uint64_t item, uint64_t columns) {
  const delta::Section& from = model.section(item);
  const DeltaTables& tables = model.tables(item);
  cuda::Section to{};
  to.columns = columns;
  to.row_length = from.row_length;
  to.period = from.period;
  to.base = from.base;
  to.most = grid::KeyFormat(model.layout()).max_scale();
  to.row_step = from.row_step;
  to.column_step = from.column_step;
  to.relation = static_cast<uint8_t>(from.relation);
  to.low = static_cast<uint8_t>(from.low);
  to.origin = from.shape.origin;
  to.shift = static_cast<uint8_t>(from.shape.shift);
  to.places = static_cast<uint8_t>(from.shape.places);
  to.fraction = static_cast<uint8_t>(from.shape.fraction);
  to.near = static_cast<uint8_t>(from.shape.near);
  to.near_raw = static_cast<uint8_t>(from.shape.near_raw);
  std::copy(std::begin(from.shape.class_of), std::end(from.shape.class_of), to.class_of);
  std::copy_n(tables.raw, kDeltaClasses, to.raw);
  std::copy_n(tables.start, kDeltaClasses * kDeltaEntries, to.start);
  std::copy_n(tables.coder, kDeltaClasses * kDeltaEntries, to.coder);
  return to;
}

}  // namespace

DevicePlan::DevicePlan(const FrameIndex& index, size_t first, size_t last, const uint8_t* payload)
    : index_(index), first_(first), last_(last), model_(read_model(index, first, last)) {
  if (payload != nullptr) read_grids(payload);
}

void DevicePlan::read_grids(const uint8_t* payload) {
  Workspace workspace;
  for (size_t b = first_; b < last_; ++b) {
    const uint8_t* const block = payload + (index_.offsets[b] - index_.offsets[first_]);
    const auto size = static_cast<size_t>(index_.offsets[b + 1] - index_.offsets[b]);
    if (size == 0 || Mode{*block} != Mode::grid) continue;
    BlockContext context{workspace};
    context.first = index_.header.first_in_version(b);
    context.version = index_.header.version;
    auto grid =
        DeviceGrid::read(index_.header.layout, context, block, size, index_.items(b, b + 1));
    if (grid) grids_.emplace(b, std::move(*grid));
  }
}

bool DevicePlan::needs_base() const {
  const Header& header = index_.header;
  return header.has_differences && index_.versions[header.version_of(first_)].has_base();
}

const std::vector<uint8_t>& DevicePlan::tail() const {
  static const std::vector<uint8_t> none;
  return last_ == index_.blocks() ? index_.tail : none;
}

void DevicePlan::check_payload(size_t size) const {
  check_payload_size(index_, first_, last_, size);
}

std::optional<DeviceNeeds> DevicePlan::needs(const uint8_t* payload, uint64_t items) const {
  PlaneView planes[kMaxItemSize];
  const size_t width = index_.header.width();
  DeviceNeeds needs;
  for (size_t b = first_; b < last_; ++b) {
    const uint8_t* const block = payload + (index_.offsets[b] - index_.offsets[first_]);
    const auto size = static_cast<size_t>(index_.offsets[b + 1] - index_.offsets[b]);
    const size_t n = index_.items(b, b + 1);
    try {
      parse_block(width, n, block, size, planes);
    } catch (const CorruptDataError&) {
      return std::nullopt;
    }
    if (planes[0].mode == Mode::grid) {
      const auto grid = grids_.find(b);
      if (grid == grids_.end()) return std::nullopt;
      needs.kernels |= kernels_for(grid->second);
      continue;
    }
    size_t coded = 0;
    for (size_t p = 0; p < width; ++p) {
      if (!is_on_device(planes[p].mode)) return std::nullopt;
      coded += is_coded(planes[p].mode) && planes[p].mode != Mode::difference ? 1 : 0;
    }
    // One coded plane is decoded to where the items go, unless their base may be there.
    const size_t beside = coded != 0 && !needs_base() ? coded - 1 : coded;
    needs.scratch = std::max(needs.scratch, beside * static_cast<size_t>(cuda::plane_stride(n)));
    needs.kernels |= kernels_for(b, planes, items);
  }
  return needs;
}

// The kernels that a block needs, by the conditions under which the kernels themselves take a block
// (cuda/two_planes.h, cuda/fused_delta.h).
uint8_t DevicePlan::kernels_for(size_t block, const PlaneView planes[], uint64_t items) const {
  const Header& header = index_.header;
  if (header.width() != 2 || items % 4 != 0) return cuda::kDecodeAny;
  const Mode first = planes[0].mode, second = planes[1].mode;
  if (first == Mode::difference) {
    return is_usual_difference(block, planes) ? cuda::kDecodeFusedDelta : cuda::kDecodeAny;
  }
  if (second != Mode::stored || header.layout.by_byte || header.needs_base()) {
    return cuda::kDecodeAny | cuda::kMergePlanes;
  }
  switch (first) {
    case Mode::stored:
      return cuda::kMergePlanes;
    case Mode::rans_pairs:
      return cuda::kDecodeFused;
    case Mode::huffman:
      return index_.items(block, block + 1) < kHuffmanStreamsFrom
                 ? cuda::kDecodeAny | cuda::kMergePlanes
                 : cuda::kDecodeHuffman | cuda::kMergePlanes;
    default:
      return cuda::kDecodeAny | cuda::kMergePlanes;
  }
}

uint8_t DevicePlan::kernels_for(const DeviceGrid& grid) const {
  // The kernel for all kinds of blocks decodes symbols, and compares a base.
  const bool is_ready = !grid.has_coded_symbols() && !index_.header.needs_base();
  return is_ready ? cuda::kMultiplyLevels : cuda::kDecodeAny | cuda::kMultiplyLevels;
}

bool DevicePlan::is_usual_difference(size_t block, const PlaneView planes[]) const {
  if (!model_.delta) return false;  // damaged
  const delta::Section& section = model_.delta->section(index_.header.first_in_version(block));
  if (section.low != 0 || section.relation != delta::Relation::ordered) return false;
  // Behind the rows, whose size is a u16, is the number of groups, as a power of two.
  const auto& [mode, payload, size] = planes[0];
  const size_t groups_at = size < 2 ? size : size_t{2} + payload[0] + 256 * payload[1];
  return groups_at < size && payload[groups_at] == std::countr_zero(kMaxGroups);
}

size_t DevicePlan::most_scratch() const {
  const Header& header = index_.header;
  return header.width() * static_cast<size_t>(cuda::plane_stride(header.block_items()));
}

// Calls function(item) with the first item of each of the model's sections that the blocks are in.
template <typename Function>
void DevicePlan::for_each_section(Function function) const {
  if (!model_.delta) return;
  const Header& header = index_.header;
  const uint64_t end = header.first_in_version(last_ - 1) / grid::kSectionItems + 1;
  for (uint64_t s = header.first_in_version(first_) / grid::kSectionItems; s < end; ++s) {
    function(s * grid::kSectionItems);
  }
}

size_t DevicePlan::model_size() const {
  size_t size = sections_size();
  for (const auto& [block, grid] : grids_) size += grid.size();
  return size;
}

size_t DevicePlan::sections_size() const {
  size_t size = 0;
  for_each_section([&](uint64_t item) {
    size += sizeof(cuda::Section) + columns_size(model_.delta->section(item));
  });
  return size;
}

// First all sections, then the columns of each, and then the grids.
std::vector<uint8_t> DevicePlan::model(uint64_t address) const {
  std::vector<uint8_t> bytes(model_size());
  size_t at = 0, columns = 0;
  for_each_section([&](uint64_t) { columns += sizeof(cuda::Section); });
  for_each_section([&](uint64_t item) {
    const delta::Section& of = model_.delta->section(item);
    const cuda::Section section = section_of(*model_.delta, item, address + columns);
    std::memcpy(bytes.data() + at, &section, sizeof section);
    at += sizeof section;
    if (of.columns.empty()) return;
    std::memcpy(bytes.data() + columns, of.columns.data(), of.columns.size() * sizeof(int16_t));
    columns += columns_size(of);
  });
  for (const auto& [block, grid] : grids_) {
    grid.write(address + columns, bytes.data() + columns);
    columns += grid.size();
  }
  return bytes;
}

std::vector<cuda::Job> DevicePlan::jobs(const DeviceAddresses& at) const {
  const Header& header = index_.header;
  std::vector<cuda::Job> jobs(last_ - first_);
  const uint64_t begin = header.first_in_version(first_), section = begin / grid::kSectionItems;
  uint64_t grid_at = at.model + sections_size();
  for (size_t b = first_; b < last_; ++b) {
    cuda::Job& job = jobs[b - first_];
    const uint64_t first = header.first_in_version(b), before = (first - begin) * header.width();
    job = {};
    job.payload = at.payload + (index_.offsets[b] - index_.offsets[first_]);
    job.items = at.items + before;
    job.base = at.base == 0 ? 0 : at.base + before;
    if (model_.delta) {
      const uint64_t of_block = first / grid::kSectionItems - section;
      job.section = at.model + of_block * sizeof(cuda::Section);
    }
    job.first = first;
    job.size = static_cast<uint32_t>(index_.offsets[b + 1] - index_.offsets[b]);
    job.n = static_cast<uint32_t>(index_.items(b, b + 1));
    job.width = static_cast<uint8_t>(header.width());
    job.flags = header.layout.by_byte ? cuda::kJobByByte : uint8_t{0};
    if (header.has_checksums) {
      job.checksum = index_.checksums[b];
      job.flags |= cuda::kJobChecked;
    }
    if (header.needs_base()) {
      job.base_checksum = index_.base_checksums[b];
      job.flags |= cuda::kJobBaseChecked;
    }
    if (const auto grid = grids_.find(b); grid != grids_.end()) {
      job.section = grid_at;
      job.flags |= cuda::kJobGrid;
      grid_at += grid->second.size();
    }
  }
  return jobs;
}

}  // namespace bf16codecs
