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
#include "wait.hpp"

namespace slackwater::python {
namespace {

using Addresses = nb::typed<nb::list, nb::int_>;

// The part of a state that stays the same from save to save; only addresses change. Constant after construction.
struct Structure {
  std::vector<Tensor> tensors;
  std::vector<std::string> objects;
  std::shared_ptr<const void> identity = std::make_shared<char>();

  using Texts = nb::typed<nb::list, nb::str>;
  using Items = nb::typed<nb::list, nb::any>;
  Structure(const Texts& names, const Texts& dtypes, const Items& shapes, const Items& strides, const Items& updates,
            const Items& devices, std::size_t watched, std::vector<std::string> object_names,
            const std::optional<Items>& shards)
      : objects(std::move(object_names)) {
    const std::size_t count = names.size();
    if (dtypes.size() != count || shapes.size() != count || strides.size() != count || updates.size() != count ||
        devices.size() != count || watched > count || (shards && shards->size() != count)) {
      throw nb::value_error("the lists of a structure differ in length");
    }
    tensors.reserve(count);
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
    }
  }

  // None, or (global_shape, offset, replica_group, replica, replicas).
  static std::optional<Shard> to_shard(const nb::object& given) {
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

  [[nodiscard]] std::vector<Tensor> with_addresses(const Addresses& addresses) const {
    if (addresses.size() != tensors.size()) throw nb::value_error("one address per tensor is needed");
    std::vector<Tensor> result = tensors;
    for (std::size_t i = 0; i < result.size(); ++i) {
      result[i].data = reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(addresses[i]));
    }
    return result;
  }
};

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
                       const MailboxHandle& handle, const StoreRelayHandle* store) {
    std::shared_ptr<Mailbox> mailbox = handle.box;
    Options options;
    options.path = path;
    for (const auto& [name, value] : settings) value_or_raise(set_option(options, name, value));
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
            std::map<std::string, std::string> values, std::map<std::string, std::string> replicated) {
    State state;
    state.tensors = structure.with_addresses(addresses);
    state.objects = structure.objects;
    state.structure = structure.identity;
    state.tree.assign(tree.c_str(), tree.size());
    state.metadata = std::move(metadata);
    state.metrics = std::move(metrics);
    state.pin = pin;
    state.never_skip = never_skip;
    state.values = std::move(values);
    state.replicated_values = std::move(replicated);
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

  void prepare(const Structure& structure, const Addresses& addresses, const nb::bytes& tree) {
    State state;
    state.tensors = structure.with_addresses(addresses);
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

  void close(std::optional<double> timeout) {
    value_or_raise([&] {
      const WithoutGil release;
      return engine_->close(to_milliseconds(timeout));
    }());
  }

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

 private:
  std::optional<Engine> engine_;
  std::shared_ptr<Mailbox> mailbox_;
};

}  // namespace

void bind_engine(nb::module_& module) {
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
           "objects: "
           "names of what the tensors belong to, outer ones first. "
           "shards: for each tensor None, or its box of a global tensor and the ranks that hold it too: (global_shape, "
           "offset, replica_group, replica, replicas).")
      .def("__len__", [](const Structure& self) { return self.tensors.size(); });

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

  nb::class_<PyEngine>(module, "Engine", "Checkpoints the state of one rank in the background.")
      .def_static("open", &PyEngine::open, nb::arg("settings"), nb::arg("path"), nb::arg("mailbox"),
                  nb::arg("store").none() = nb::none())
      .def("save", &PyEngine::save, nb::arg("step"), nb::arg("structure"), nb::arg("addresses"), nb::arg("tree"),
           nb::arg("metadata"), nb::arg("owner"), nb::arg("arrived"), nb::arg("after") = StreamList(),
           nb::arg("metrics") = std::map<std::string, double>(), nb::arg("pin") = false, nb::arg("never_skip") = false,
           nb::arg("values") = std::map<std::string, std::string>(),
           nb::arg("replicated") = std::map<std::string, std::string>(),
           "Capture a state: its Snapshot is appended to `arrived`; False when skipped. `owner` is kept until no byte "
           "is "
           "read any more; `after` are (device, stream) that produce it. Parts of the tree, by name: `values` are "
           "compared "
           "between the ranks, `replicated` must be the same on all of them.")
      .def("prepare", &PyEngine::prepare, nb::arg("structure"), nb::arg("addresses"), nb::arg("tree"),
           "Make the pool for this state in the background.")
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
      .def("close", &PyEngine::close, nb::arg("timeout") = nb::none())
      .def("pin", &PyEngine::pin, nb::arg("step"))
      .def("remove", &PyEngine::remove, nb::arg("step"))
      .def("versions", &PyEngine::versions, nb::call_guard<WithoutGil>())
      .def("stats", &PyEngine::stats, nb::call_guard<WithoutGil>());
}

}  // namespace slackwater::python
