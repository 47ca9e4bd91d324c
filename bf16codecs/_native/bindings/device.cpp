#include "bindings/device.h"

#include "bindings/buffers.h"
#include "bindings/gil.h"
#include "codec/checked.h"
#include "codec/device_plan.h"

namespace bf16codecs {
namespace {

using namespace nb::literals;

nb::bytes as_bytes(const void* data, size_t size) {
  return nb::bytes(static_cast<const char*>(data), size);
}

void plan(DevicePlan* self, const FrameIndex& index, size_t first, size_t last,
          nb::handle payload_object) {
  check_blocks(index, first, last);
  if (payload_object.is_none()) {
    new (self) DevicePlan(index, first, last, nullptr);
    return;
  }
  const Source payload(payload_object);
  check_payload_size(index, first, last, payload.size());
  const ReleasedGil released;  // the scales of grids are decoded
  new (self) DevicePlan(index, first, last, payload.data());
}

nb::object needs(const DevicePlan& plan, nb::handle payload_object, uint64_t items) {
  const Source payload(payload_object);
  plan.check_payload(payload.size());
  const std::optional<DeviceNeeds> needs = plan.needs(payload.data(), items);
  return needs ? nb::object(nb::make_tuple(needs->scratch, needs->kernels)) : nb::none();
}

nb::bytes model(const DevicePlan& plan, uint64_t address) {
  const std::vector<uint8_t> bytes = plan.model(address);
  return as_bytes(bytes.data(), bytes.size());
}

nb::bytes jobs(const DevicePlan& plan, uint64_t payload, uint64_t items, uint64_t base,
               uint64_t model) {
  const std::vector<cuda::Job> jobs = plan.jobs({payload, items, base, model});
  return as_bytes(jobs.data(), jobs.size() * sizeof(cuda::Job));
}

}  // namespace

void publish_device(nb::module_& m) {
  m.attr("DEVICE_JOB_BYTES") = sizeof(cuda::Job);
  nb::class_<DevicePlan>(m, "DevicePlan")
      .def("__init__", &plan, "index"_a, "first"_a, "last"_a, "payload"_a.none() = nb::none(),
           nb::keep_alive<1, 2>())
      .def_prop_ro("needs_base", &DevicePlan::needs_base)
      .def_prop_ro("tail",
                   [](const DevicePlan& plan) {
                     const std::vector<uint8_t>& tail = plan.tail();
                     return as_bytes(tail.data(), tail.size());
                   })
      .def_prop_ro("model_nbytes", &DevicePlan::model_size)
      .def_prop_ro("most_scratch", &DevicePlan::most_scratch)
      .def("needs", &needs, "payload"_a, "items"_a)
      .def("model", &model, "address"_a)
      .def("jobs", &jobs, "payload"_a, "items"_a, "base"_a, "model"_a);
}

}  // namespace bf16codecs
