#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"

namespace slackwater::python {

std::vector<std::int64_t> to_sizes(nb::handle sequence) {
  std::vector<std::int64_t> sizes;
  const nb::tuple items(nb::borrow(sequence));
  sizes.reserve(items.size());
  for (const nb::handle item : items) sizes.push_back(nb::cast<std::int64_t>(item));
  return sizes;
}

DType to_dtype(nb::handle name) { return value_or_raise(dtype_from_name(nb::cast<std::string>(name))); }

std::vector<Target> to_targets(const nb::list& items) {
  std::vector<Target> targets;
  targets.reserve(items.size());
  for (const nb::handle item : items) {
    const auto fields = nb::cast<nb::tuple>(item);
    if (fields.size() != 6 && fields.size() != 7) throw nb::value_error("a target has six fields, or seven");
    Target& target = targets.emplace_back();
    target.name = nb::cast<std::string>(fields[0]);
    target.dtype = to_dtype(fields[1]);
    target.shape = to_sizes(fields[2]);
    if (const nb::object strides = fields[3]; !strides.is_none()) target.strides = to_sizes(strides);
    target.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(fields[4]));
    target.device = nb::cast<int>(fields[5]);
    if (fields.size() == 7) {
      const auto box = nb::cast<nb::tuple>(fields[6]);
      if (box.size() != 2) throw nb::value_error("the box of a target is a pair: global shape and offset");
      Shard& shard = target.shard.emplace();
      shard.global_shape = to_sizes(box[0]);
      shard.offset = to_sizes(box[1]);
    }
  }
  return targets;
}

std::vector<StreamRef> to_streams(const StreamList& items) {
  std::vector<StreamRef> streams;
  streams.reserve(items.size());
  for (const auto& [device, handle] : items) streams.push_back({device, handle});
  return streams;
}

Contents contents_of(const Checkpoint& checkpoint) {
  const auto tensors = checkpoint.tensors();
  const auto differ = checkpoint.rank_local_values();
  return {checkpoint.version(),
          {tensors.begin(), tensors.end()},
          checkpoint.tree(),
          checkpoint.metadata(),
          {differ.begin(), differ.end()}};
}

void bind_values(nb::module_& module) {
  nb::class_<VersionInfo>(module, "VersionInfo", "One committed checkpoint.")
      .def_ro("step", &VersionInfo::step)
      .def_ro("attempt", &VersionInfo::attempt)
      .def_ro("directory", &VersionInfo::directory)
      .def_ro("world", &VersionInfo::world)
      .def_ro("size_bytes", &VersionInfo::size_bytes)
      .def_ro("tensor_count", &VersionInfo::tensor_count)
      .def_ro("created_unix_ms", &VersionInfo::created_unix_ms)
      .def_ro("pinned", &VersionInfo::pinned)
      .def_ro("metrics", &VersionInfo::metrics, "The numbers among its metadata; NaN for what is not finite.");

  nb::class_<TensorInfo>(module, "TensorInfo", "One tensor of a checkpoint.")
      .def_ro("name", &TensorInfo::name)
      .def_prop_ro("dtype", [](const TensorInfo& self) { return dtype_name(self.dtype); })
      .def_prop_ro("shape",
                   [](const TensorInfo& self) -> nb::typed<nb::tuple, int, nb::ellipsis> {
                     return nb::tuple(nb::cast(self.shape));
                   })
      .def_ro("size_bytes", &TensorInfo::size_bytes)
      .def_ro("alias_of", &TensorInfo::alias_of)
      .def_prop_ro(
          "is_global", [](const TensorInfo& self) { return !self.boxes.empty(); },
          "Whether the ranks held it together, in boxes.");

  nb::class_<Contents>(module, "Contents", "What an opened checkpoint holds.")
      .def_ro("version", &Contents::version)
      .def_ro("tensors", &Contents::tensors)
      .def_prop_ro(
          "tree", [](const Contents& self) { return nb::bytes(self.tree.data(), self.tree.size()); },
          "As it was saved: nobody vouches that it is text.")
      .def_ro("metadata", &Contents::metadata)
      .def_ro("rank_local_values", &Contents::rank_local_values,
              "Members at the top of the tree that differ between the ranks that saved it.");

  module.def(
      "dtypes",
      [] {
        std::map<std::string, std::uint32_t> sizes;
        for (int code = 0; code <= static_cast<int>(DType::kC128); ++code) {
          const auto dtype = static_cast<DType>(code);
          sizes.emplace(dtype_name(dtype), item_bytes(dtype));
        }
        return sizes;
      },
      "Every dtype by name, with the bytes of one element.");
  module.def(
      "list_versions",
      [](const std::string& directory) {
        Result<std::vector<VersionInfo>> versions = [&] {
          const WithoutGil release;
          return list_versions(directory);
        }();
        return value_or_raise(std::move(versions));
      },
      nb::arg("directory"), "Committed checkpoints of a directory, oldest first.");
}

}  // namespace slackwater::python
