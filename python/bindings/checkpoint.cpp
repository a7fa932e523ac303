#include "slackwater/checkpoint.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"

namespace slackwater::python {

void bind_checkpoint(nb::module_& module) {
  nb::class_<Checkpoint>(module, "Checkpoint", "A committed checkpoint, opened for reading. One read() at a time.")
      .def_static(
          "open",
          [](const std::string& directory, std::optional<std::uint64_t> step,
             const std::vector<std::pair<std::string, std::string>>& tier) {
            TierOptions place;
            for (const auto& [name, value] : tier) value_or_raise(set_tier_option(place, name, value));
            Result<Checkpoint> opened = [&] {
              const WithoutGil release;
              return Checkpoint::open(directory, step, {.s3 = place.s3});
            }();
            return value_or_raise(std::move(opened));
          },
          nb::arg("directory"), nb::arg("step") = nb::none(),
          nb::arg("tier") = std::vector<std::pair<std::string, std::string>>(),
          "The newest checkpoint, or that of the step. `tier`: names and texts of tier options, for an object store.")
      .def("contents", &contents_of)
      .def(
          "read",
          [](Checkpoint& self, const TargetList& items) {
            const std::vector<Target> targets = to_targets(items);
            const Status status = [&] {
              const WithoutGil release;
              return self.read(targets);
            }();
            value_or_raise(status);
          },
          nb::arg("targets"),
          "Read and verify: [(name, dtype, shape, strides or None, address, device), ...]. A seventh field "
          "(global_shape, offset) "
          "asks for a box of the tensor instead of all of it.");
}

}  // namespace slackwater::python
