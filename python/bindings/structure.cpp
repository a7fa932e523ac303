#include "structure.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace slackwater::python {
namespace {

// None, or (global_shape, offset, replica_group, replica, replicas).
std::optional<Shard> to_shard(const nb::object& given) {
  if (given.is_none()) return std::nullopt;
  const auto fields = nb::cast<nb::tuple>(given);
  if (fields.size() != 5) {
    throw nb::value_error("a shard is None or (global_shape, offset, replica_group, replica, replicas)");
  }
  return Shard{.global_shape = to_sizes(fields[0]),
               .offset = to_sizes(fields[1]),
               .replica_group = nb::cast<std::string>(fields[2]),
               .replica = nb::cast<std::uint32_t>(fields[3]),
               .replicas = nb::cast<std::uint32_t>(fields[4])};
}

std::uint64_t size_bytes(const Tensor& tensor) {
  std::uint64_t size = item_bytes(tensor.dtype);
  for (const std::int64_t extent : tensor.shape) size *= static_cast<std::uint64_t>(extent);
  return size;
}

}  // namespace

Structure::Structure(const Texts& names, const Texts& dtypes, const Items& shapes, const Items& strides,
                     const Items& updates, const Items& devices, std::size_t watched_tensors,
                     std::vector<std::string> object_names, const std::optional<Items>& shards)
    : watched(watched_tensors), objects(std::move(object_names)) {
  const std::size_t count = names.size();
  if (dtypes.size() != count || shapes.size() != count || strides.size() != count || updates.size() != count ||
      devices.size() != count || watched > count || (shards && shards->size() != count)) {
    throw nb::value_error("the lists of a structure differ in length");
  }
  tensors.reserve(count);
  layouts.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    Tensor& tensor = tensors.emplace_back();
    tensor.name = nb::cast<std::string>(names[i]);
    tensor.dtype = to_dtype(dtypes[i]);
    tensor.shape = to_sizes(shapes[i]);
    if (const nb::object stride = strides[i]; !stride.is_none()) tensor.strides = to_sizes(stride);
    tensor.updates = nb::cast<Updates>(updates[i]);
    tensor.watched = i < watched;
    tensor.device = nb::cast<int>(devices[i]);
    if (shards) tensor.shard = to_shard((*shards)[i]);
    add_layout(tensor);
  }
}

void Structure::add_layout(const Tensor& tensor) {
  Layout& layout = layouts.emplace_back();
  layout.first = extents.size();
  layout.dimensions = tensor.shape.size();
  layout.device = tensor.device;
  layout.dtype = tensor.dtype;
  layout.empty = std::ranges::find(tensor.shape, 0) != tensor.shape.end();
  layout.has_strides = tensor.strides.size() == tensor.shape.size();
  extents.insert(extents.end(), tensor.shape.begin(), tensor.shape.end());
  if (layout.has_strides) extents.insert(extents.end(), tensor.strides.begin(), tensor.strides.end());
}

std::vector<Tensor> Structure::with_addresses(std::span<const std::uintptr_t> read, const Addresses& addresses) const {
  if (read.size() + addresses.size() != tensors.size()) throw nb::value_error("one address per tensor is needed");
  std::vector<Tensor> result;
  if (const auto spare = spare_->lock(); !spare->empty()) {
    result = std::move(spare->back());
    spare->pop_back();
  }
  if (result.empty()) result = tensors;
  for (std::size_t i = 0; i < read.size(); ++i) result[i].data = reinterpret_cast<const void*>(read[i]);
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    result[read.size() + i].data = reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(addresses[i]));
  }
  return result;
}

Structure::TakeBack Structure::take_back() const {
  constexpr std::size_t kMostKept = 4;  // as many as are in flight, almost always
  return [spare = spare_, count = tensors.size()](std::vector<Tensor> used) {
    if (used.size() != count) return;
    for (Tensor& tensor : used) {
      tensor.data = nullptr;
      tensor.at_once = false;  // the engine has chosen those, for that save
    }
    const auto kept = spare->lock();
    if (kept->size() < kMostKept) kept->push_back(std::move(used));
  };
}

void bind_structure(nb::module_& module) {
  nb::enum_<Updates>(module, "Updates", "When a tensor may be written.")
      .value("BEHIND_FENCE", Updates::kBehindFence, "Only by updates that wait for the fence.")
      .value("ANY_TIME", Updates::kAnyTime, "Right after save().")
      .value("UNKNOWN", Updates::kUnknown);

  nb::class_<Structure>(module, "Structure",
                        "Names, dtypes, shapes and strides of a state: what stays the same from save to save.")
      .def(nb::init<const Structure::Texts&, const Structure::Texts&, const Structure::Items&, const Structure::Items&,
                    const Structure::Items&, const Structure::Items&, std::size_t, std::vector<std::string>,
                    const std::optional<Structure::Items>&>(),
           nb::arg("names"), nb::arg("dtypes"), nb::arg("shapes"), nb::arg("strides"), nb::arg("updates"),
           nb::arg("devices"), nb::arg("watched"), nb::arg("objects"), nb::arg("shards") = nb::none(),
           "updates: when each may be written. watched: of so many at the front the caller notices writes itself. "
           "objects: names of what the tensors belong to, outer ones first. shards: for each tensor None, or its box "
           "of a global tensor and the ranks that hold it too: (global_shape, offset, replica_group, replica, "
           "replicas).")
      .def(
          "size_bytes", [](const Structure& self, std::size_t index) { return size_bytes(self.tensors.at(index)); },
          nb::arg("index"), "Of the elements of one tensor.")
      .def("__len__", [](const Structure& self) { return self.tensors.size(); });
}

}  // namespace slackwater::python
