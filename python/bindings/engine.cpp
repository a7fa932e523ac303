#include "slackwater/engine.hpp"

#include <memory>
#include <utility>

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "mailbox.hpp"
#include "snapshot.hpp"
#include "store_relay.hpp"
#include "structure.hpp"
#include "tensor_reader.hpp"
#include "wait.hpp"

namespace slackwater::python {
namespace {

std::span<const std::uintptr_t> addresses_of(const Reading* reading) {
  if (reading == nullptr) return {};
  return reading->addresses;
}

class PyEngine {
 public:
  PyEngine(Engine engine, std::shared_ptr<Mailbox> mailbox)
      : engine_(std::move(engine)), mailbox_(std::move(mailbox)) {}
  PyEngine(PyEngine&& other) noexcept
      : engine_(std::exchange(other.engine_, std::nullopt)), mailbox_(std::move(other.mailbox_)) {}
  PyEngine& operator=(PyEngine&&) = delete;
  ~PyEngine() {
    if (!engine_) return;
    const WithoutGil release;
    // Dropping the last reference without close() must not wait for storage: snapshots in flight are given up.
    (void)engine_->close(std::chrono::milliseconds(0));
    engine_.reset();
  }

  static PyEngine open(const std::vector<std::pair<std::string, std::string>>& settings, const std::string& path,
                       const MailboxHandle& handle, const StoreRelayHandle* store,
                       const std::vector<std::vector<std::pair<std::string, std::string>>>& tiers) {
    std::shared_ptr<Mailbox> mailbox = handle.box;
    Options options;
    options.path = path;
    for (const auto& [name, value] : settings) value_or_raise(set_option(options, name, value));
    for (const auto& tier : tiers) {
      options.tiers.emplace_back();
      for (const auto& [name, value] : tier) value_or_raise(set_tier_option(options.tiers.back(), name, value));
    }
    if (store != nullptr) options.store = store->relay;
    options.log = [mailbox](LogLevel level, std::string_view line) { mailbox->post(level, line); };
    Result<Engine> engine = [&] {
      const WithoutGil release;
      return Engine::open(std::move(options));
    }();
    return {value_or_raise(std::move(engine)), std::move(mailbox)};
  }

  // The snapshot is put into `arrived` here and not returned. A signal handler of Python may run, and raise, between
  // the return of a call and the use of its result. Nobody would ever seal a snapshot that is lost there.
  bool save(std::uint64_t step, const Structure& structure, const Addresses& addresses, const nb::bytes& tree,
            std::map<std::string, std::string> metadata, const nb::object& owner, nb::list arrived,
            const StreamList& after, std::map<std::string, double> metrics, bool pin, bool never_skip,
            std::map<std::string, std::string> values, std::map<std::string, std::string> replicated,
            const PartPlace* part, const Reading* reading) {
    State state;
    state.tensors = structure.with_addresses(addresses_of(reading), addresses);
    state.take_back = structure.take_back();
    state.objects = structure.objects;
    state.structure = structure.identity;
    state.tree.assign(tree.c_str(), tree.size());
    state.metadata = std::move(metadata);
    state.metrics = std::move(metrics);
    state.pin = pin;
    state.never_skip = never_skip;
    state.values = std::move(values);
    state.replicated_values = std::move(replicated);
    if (part != nullptr) state.part = *part;
    // The engine releases the owner on a thread of its own, which must not take the GIL. The mailbox drops it later.
    state.owner = std::shared_ptr<void>(nb::object(owner).release().ptr(), [mailbox = mailbox_](void* object) {
      mailbox->defer_decref(static_cast<PyObject*>(object));
    });
    state.sealed_by_caller = true;
    state.after = to_streams(after);
    Result<std::optional<Snapshot>> saved = [&] {
      const WithoutGil release;
      return engine_->save(step, std::move(state));
    }();
    std::optional<Snapshot> snapshot = value_or_raise(std::move(saved));
    if (!snapshot) return false;
    arrived.append(PySnapshot(std::move(*snapshot)));
    return true;
  }

  void prepare(const Structure& structure, const Addresses& addresses, const nb::bytes& tree, const Reading* reading) {
    State state;
    state.tensors = structure.with_addresses(addresses_of(reading), addresses);
    state.objects = structure.objects;
    state.structure = structure.identity;
    state.tree.assign(tree.c_str(), tree.size());
    value_or_raise([&] {
      const WithoutGil release;
      return engine_->prepare(std::move(state));
    }());
  }

  void wait_prepared() {
    wait_in_slices(std::nullopt, [&](std::chrono::milliseconds slice) {
      auto ready = engine_->wait_prepared(slice);
      return !ready || *ready;  // closed meanwhile: there is nothing left to wait for
    });
  }

  // An exception from `plan` or `read_rest` ends the restore and is raised unchanged; restorer.py adds what it means
  // for the state. Only if `read_rest` finds damage does the engine decide what follows.
  nb::object restore(std::optional<std::uint64_t> step, const nb::callable& plan, const nb::callable& read_rest,
                     const StreamList& after) {
    std::optional<nb::python_error> raised;
    const auto ask = [&](const Checkpoint& checkpoint) -> Result<std::vector<Target>> {
      const WithGil acquire;
      try {
        return to_targets(nb::cast<nb::list>(plan(contents_of(checkpoint))));
      } catch (nb::python_error& error) {
        raised.emplace(std::move(error));
      } catch (const std::exception& error) {
        PyErr_SetString(PyExc_TypeError, error.what());
        raised.emplace();
      } catch (...) {  // the interpreter ends, see gil.hpp
        stop_for_ever();
      }
      return fail(ErrorKind::kInvalidArgument, "the plan of the restore raised an exception");
    };
    const auto ask_for_rest = [&](const Checkpoint&, const RestoreOptions::OnProgress& on_progress) -> Status {
      const WithGil acquire;
      try {
        // Without the GIL: telling the other ranks may need a thread of Python's.
        const auto tell = [&on_progress] {
          const WithoutGil release;
          on_progress();
        };
        read_rest(nb::cpp_function(tell));
        return {};
      } catch (nb::python_error& error) {
        try {
          if (auto damage = damage_in(error)) return fail(std::move(*damage));
        } catch (const std::exception&) {  // then it is raised as it is
        }
        raised.emplace(std::move(error));
      } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        raised.emplace();
      } catch (...) {  // as above
        stop_for_ever();
      }
      return fail(ErrorKind::kInvalidArgument, "read_rest of the restore raised an exception");
    };
    const RestoreOptions options{
        .step = step, .passed_over = {}, .after = to_streams(after), .read_rest = ask_for_rest};
    auto restored = [&] {
      const WithoutGil release;
      return engine_->restore(options, ask);
    }();
    if (raised) throw std::move(*raised);
    std::optional<Restored> result = value_or_raise(std::move(restored));
    if (!result) return nb::none();
    return nb::make_tuple(result->version, result->damaged);
  }

  void wait(const std::string& level, std::optional<double> timeout) {
    const Level wanted = to_level(level);
    value_or_raise([&] {
      const WithoutGil release;
      return engine_->wait(wanted, to_milliseconds(timeout));
    }());
  }

  void wait_copied(std::optional<double> timeout) {
    value_or_raise([&] {
      const WithoutGil release;
      return engine_->wait_copied(to_milliseconds(timeout));
    }());
  }

  void close(std::optional<double> timeout) {
    value_or_raise([&] {
      const WithoutGil release;
      return engine_->close(to_milliseconds(timeout));
    }());
  }

  void keep_memory() { engine_->keep_memory(); }

  void pin(std::uint64_t step) {
    value_or_raise([&] {
      const WithoutGil release;
      return engine_->pin(step);
    }());
  }

  void remove(std::uint64_t step) {
    value_or_raise([&] {
      const WithoutGil release;
      return engine_->remove(step);
    }());
  }

  [[nodiscard]] std::vector<VersionInfo> versions() const { return engine_->versions(); }
  [[nodiscard]] EngineStats stats() const { return engine_->stats(); }
  [[nodiscard]] std::vector<TierStatus> tiers() const { return engine_->tiers(); }

 private:
  std::optional<Engine> engine_;
  std::shared_ptr<Mailbox> mailbox_;
};

}  // namespace

void bind_engine(nb::module_& module) {
  nb::class_<EngineStats>(module, "EngineStats", "Totals of an engine, and what it runs on.")
      .def_ro("pool_bytes", &EngineStats::pool_bytes)
      .def_ro("pool_numa_node", &EngineStats::pool_numa_node)
      .def_ro("snapshots_committed", &EngineStats::snapshots_committed)
      .def_ro("snapshots_failed", &EngineStats::snapshots_failed)
      .def_ro("snapshots_skipped", &EngineStats::snapshots_skipped)
      .def_ro("bytes_written", &EngineStats::bytes_written)
      .def_ro("io_backend", &EngineStats::io_backend)
      .def_ro("direct_io", &EngineStats::direct_io)
      .def_ro("registered_buffers", &EngineStats::registered_buffers);

  nb::class_<TierStatus>(module, "TierStatus", "How the copies to one lower tier go, as this rank sees it.")
      .def_ro("location", &TierStatus::location)
      .def_ro("newest_step", &TierStatus::newest_step)
      .def_ro("waiting", &TierStatus::waiting)
      .def_ro("copying", &TierStatus::copying)
      .def_ro("skipped", &TierStatus::skipped)
      .def_ro("sent_bytes", &TierStatus::sent_bytes)
      .def_ro("errors", &TierStatus::errors)
      .def_ro("last_error", &TierStatus::last_error);

  nb::class_<PyEngine>(module, "Engine", "Checkpoints the state of one rank in the background.")
      .def_static("open", &PyEngine::open, nb::arg("settings"), nb::arg("path"), nb::arg("mailbox"),
                  nb::arg("store").none() = nb::none(),
                  nb::arg("tiers") = std::vector<std::vector<std::pair<std::string, std::string>>>())
      .def("save", &PyEngine::save, nb::arg("step"), nb::arg("structure"), nb::arg("addresses"), nb::arg("tree"),
           nb::arg("metadata"), nb::arg("owner"), nb::arg("arrived"), nb::arg("after") = StreamList(),
           nb::arg("metrics") = std::map<std::string, double>(), nb::arg("pin") = false, nb::arg("never_skip") = false,
           nb::arg("values") = std::map<std::string, std::string>(),
           nb::arg("replicated") = std::map<std::string, std::string>(), nb::arg("part").none() = nb::none(),
           nb::arg("reading").none() = nb::none(),
           "Capture a state: its Snapshot is appended to `arrived`; False when skipped. `owner` is kept until no byte "
           "is "
           "read any more; `after` are (device, stream) that produce it. Parts of the tree, by name: `values` are "
           "compared "
           "between the ranks, `replicated` must be the same on all of them. `part`: this is one rank's part of a "
           "version "
           "that a PartCommitter commits. `reading`: of the tensors at the front; `addresses` has those of the others.")
      .def("prepare", &PyEngine::prepare, nb::arg("structure"), nb::arg("addresses"), nb::arg("tree"),
           nb::arg("reading").none() = nb::none(), "Make the pool for this state in the background.")
      .def("wait_prepared", &PyEngine::wait_prepared, "Until every slab of the pool can be used, or it is closed.")
      .def("restore", &PyEngine::restore, nb::arg("step"), nb::arg("plan"), nb::arg("read_rest"),
           nb::arg("after") = StreamList(),
           nb::sig("def restore(self, step: int | None, plan: collections.abc.Callable[[Contents], list[tuple[str, "
                   "str, tuple[int, ...], "
                   "tuple[int, ...] | None, int, int]]], read_rest: "
                   "collections.abc.Callable[[collections.abc.Callable[[], None]], None], "
                   "after: collections.abc.Sequence[tuple[int, int]] = []) -> tuple[VersionInfo, list[str]] | None"),
           "plan(Contents) answers where tensors go; None when there is nothing to restore. read_rest(progress) reads "
           "what the engine cannot place, and calls progress() now and then. If it raises DamagedError, this version "
           "is damaged.")
      .def("wait", &PyEngine::wait, nb::arg("level"), nb::arg("timeout") = nb::none(),
           "Raise the first background error not yet reported.")
      .def("wait_copied", &PyEngine::wait_copied, nb::arg("timeout") = nb::none(),
           "Until every version that is due on a lower tier is there.")
      .def("keep_memory", &PyEngine::keep_memory, nb::call_guard<WithoutGil>())
      .def("close", &PyEngine::close, nb::arg("timeout") = nb::none())
      .def("pin", &PyEngine::pin, nb::arg("step"))
      .def("remove", &PyEngine::remove, nb::arg("step"))
      .def("versions", &PyEngine::versions, nb::call_guard<WithoutGil>())
      .def("stats", &PyEngine::stats, nb::call_guard<WithoutGil>())
      .def("tiers", &PyEngine::tiers, nb::call_guard<WithoutGil>());
}

}  // namespace slackwater::python
