#include "slackwater/part.hpp"

#include <optional>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "mailbox.hpp"

namespace slackwater::python {

void bind_part(nb::module_& module) {
  nb::class_<PartPlace>(module, "PartPlace", "Where the part of one rank belongs, in a version that is not committed.")
      .def_ro("root", &PartPlace::root)
      .def_ro("run", &PartPlace::run)
      .def_ro("step", &PartPlace::step)
      .def_ro("attempt", &PartPlace::attempt)
      .def_ro("rank", &PartPlace::rank)
      .def_ro("world", &PartPlace::world);

  module.def(
      "find_place",
      [](const std::string& root, std::uint32_t rank) {
        Result<PartPlace> place = [&] {
          const WithoutGil release;
          return find_place(root, rank);
        }();
        return value_or_raise(std::move(place));
      },
      nb::arg("root"), nb::arg("rank"), "The version that a coordinator has begun in this directory.");

  nb::class_<PartCommitter>(module, "PartCommitter",
                            "Begins and commits a version whose ranks somebody else coordinates. One thread at a time.")
      .def_static(
          "open",
          [](const std::string& root, const std::string& run_name, const MailboxHandle& handle) {
            LogSink log = [mailbox = handle.box](LogLevel level, std::string_view line) { mailbox->post(level, line); };
            Result<PartCommitter> opened = [&] {
              const WithoutGil release;
              return PartCommitter::open(root, run_name, std::move(log));
            }();
            return value_or_raise(std::move(opened));
          },
          nb::arg("root"), nb::arg("run_name"), nb::arg("mailbox"), "Takes the lock of the directory.")
      .def("has_version", &PartCommitter::has_version, "Whether there is a version that a commit would replace.")
      .def(
          "begin",
          [](PartCommitter& self, std::uint64_t step, std::uint32_t world) {
            Result<PartPlace> place = [&] {
              const WithoutGil release;
              return self.begin(step, world);
            }();
            return value_or_raise(std::move(place));
          },
          nb::arg("step"), nb::arg("world"), "Claims an attempt and makes the directory of the version.")
      .def(
          "commit",
          [](PartCommitter& self, const std::vector<std::string>& parts) {
            const Status status = [&] {
              const WithoutGil release;
              return self.commit(parts);
            }();
            value_or_raise(status);
          },
          nb::arg("parts"), "Makes the version visible. `parts`: Snapshot.part() of every rank.");
}

}  // namespace slackwater::python
