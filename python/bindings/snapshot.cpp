#include "snapshot.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "wait.hpp"

namespace slackwater::python {

Level to_level(const std::string& name) {
  for (const Level level : {Level::kFenced, Level::kStaged, Level::kDurable, Level::kCommitted}) {
    if (to_string(level) == name) return level;
  }
  raise(Error{ErrorKind::kInvalidArgument,
              "level is '" + name + "'; it is one of 'fenced', 'staged', 'durable', 'committed'",
              {},
              0,
              false});
}

namespace {

Status wait_for(Snapshot& snapshot, Level level, std::optional<double> timeout) {
  Status status;
  wait_in_slices(timeout, [&](std::chrono::milliseconds slice) {
    status = snapshot.wait(level, slice);
    if (status.has_value() || status.error().kind != ErrorKind::kTimeout) return true;
    if (!snapshot.progress().failed) return false;
    status = snapshot.wait(
        level, std::chrono::milliseconds(0));  // it failed with a time-out of its own: get that error, not the slice's
    return true;
  });
  return status;
}

bool wait_released(Snapshot& snapshot, std::optional<double> timeout) {
  bool released = false;
  wait_in_slices(timeout, [&](std::chrono::milliseconds slice) { return released = snapshot.wait_released(slice); });
  return released;
}

bool wait_fenced(Snapshot& snapshot, std::optional<double> timeout) {
  bool fenced = false;
  wait_in_slices(timeout, [&](std::chrono::milliseconds slice) {
    // The engine may still read the sources of a failed snapshot, until it releases them.
    fenced = snapshot.released() || (snapshot.wait(Level::kFenced, slice).has_value());
    if (!fenced && snapshot.progress().failed) fenced = snapshot.wait_released(slice);
    return fenced;
  });
  return fenced;
}

}  // namespace

void bind_snapshot(nb::module_& module) {
  nb::class_<Progress>(module, "Progress", "How far a snapshot has come.")
      .def_prop_ro("level", [](const Progress& self) { return to_string(self.level); })
      .def_ro("failed", &Progress::failed)
      .def_ro("total_bytes", &Progress::total_bytes)
      .def_ro("staged_bytes", &Progress::staged_bytes)
      .def_ro("written_bytes", &Progress::written_bytes);

  nb::class_<SnapshotStats>(module, "SnapshotStats", "What a snapshot has cost, in seconds and bytes.")
      .def_ro("tensor_count", &SnapshotStats::tensor_count)
      .def_ro("total_bytes", &SnapshotStats::total_bytes)
      .def_ro("at_once_bytes", &SnapshotStats::at_once_bytes)
      .def_ro("save_seconds", &SnapshotStats::save_seconds)
      .def_ro("busy_seconds", &SnapshotStats::busy_seconds)
      .def_ro("fence_seconds", &SnapshotStats::fence_seconds)
      .def_ro("host_fences", &SnapshotStats::host_fences)
      .def_ro("device_fences", &SnapshotStats::device_fences)
      .def_ro("fenced_seconds", &SnapshotStats::fenced_seconds)
      .def_ro("staged_seconds", &SnapshotStats::staged_seconds)
      .def_ro("durable_seconds", &SnapshotStats::durable_seconds)
      .def_ro("committed_seconds", &SnapshotStats::committed_seconds);

  nb::class_<PySnapshot>(module, "Snapshot", "One state on its way.")
      .def_prop_ro("step", [](PySnapshot& self) { return self.get().step(); })
      .def(
          "wait_released",
          [](PySnapshot& self, std::optional<double> timeout) { return wait_released(self.get(), timeout); },
          nb::arg("timeout") = nb::none(),
          "Wait until no source byte will be read any more, without the GIL; False on time-out. Signals are handled.")
      .def(
          "wait_fenced",
          [](PySnapshot& self, std::optional<double> timeout) { return wait_fenced(self.get(), timeout); },
          nb::arg("timeout") = nb::none(),
          "Wait until every copy is made or queued on its device, without the GIL; False on time-out. Signals are "
          "handled.")
      .def(
          "queue_all",
          [](PySnapshot& self) {
            const WithoutGil release;
            // The level is not waited for.
            static_cast<void>(self.get().wait(Level::kFenced, std::chrono::milliseconds(0)));
          },
          "Have every copy queued on its device as soon as the pool allows. Does not wait.")
      .def(
          "fence",
          [](PySnapshot& self, const StreamList& streams) {
            const std::vector<StreamRef> refs = to_streams(streams);
            const WithoutGil release;
            return self.get().fence(refs).has_value();
          },
          nb::arg("streams") = StreamList(),
          "Return when the sources may be written again; with (device, stream) pairs, by work queued on those. Gives "
          "the snapshot up if nothing makes progress for stall_timeout; False if it has failed.")
      .def(
          "at_once_tensors", [](PySnapshot& self) { return self.get().at_once_tensors(); },
          "Numbers of the tensors that were copied inside save().")
      .def("seal", &PySnapshot::seal, nb::arg("torn_tensors") = std::vector<std::string>(),
           nb::arg("freed_tensors") = std::vector<std::string>(),
           "Once: the sources were unchanged, or the named tensors were found changed, or their memory gone.")
      .def(
          "wait",
          [](PySnapshot& self, const std::string& level, std::optional<double> timeout) {
            value_or_raise(wait_for(self.get(), to_level(level), timeout));
          },
          nb::arg("level"), nb::arg("timeout") = nb::none(), "Wait for a level, without the GIL. Signals are handled.")
      .def(
          "error",
          [](PySnapshot& self) -> nb::object {
            const auto error = self.get().error();
            return error ? to_exception(*error) : nb::object(nb::none());
          },
          nb::sig("def error(self) -> Exception | None"), "The exception this snapshot failed with, or None.")
      .def(
          "torn_tensors", [](PySnapshot& self) { return self.get().torn_tensors(); },
          "The tensors that were found changed before the fence.")
      .def(
          "part", [](PySnapshot& self) { return self.get().part(); },
          "Of a part that is finished: what PartCommitter.commit() wants of it.")
      .def("progress", [](PySnapshot& self) { return self.get().progress(); })
      .def("stats", [](PySnapshot& self) { return self.get().stats(); });
}

}  // namespace slackwater::python
