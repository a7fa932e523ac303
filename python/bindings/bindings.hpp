// What the files of the extension share: one bind_ function per class, and the step from Result to Python exceptions.
// Thread rule: everything here needs the GIL unless it says otherwise.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>

#include "gil.hpp"
#include "slackwater/checkpoint.hpp"
#include "slackwater/engine.hpp"
#include "slackwater/error.hpp"
#include "slackwater/tensor.hpp"

namespace nb = nanobind;

namespace slackwater::python {

void bind_mailbox(nb::module_& module);
void bind_values(nb::module_& module);
void bind_snapshot(nb::module_& module);
void bind_checkpoint(nb::module_& module);
void bind_dlpack(nb::module_& module);
void bind_store_relay(nb::module_& module);
void bind_structure(nb::module_& module);
void bind_tensor_reader(nb::module_& module);
void bind_tables(nb::module_& module);
void bind_part(nb::module_& module);
void bind_options(nb::module_& module);
void bind_engine(nb::module_& module);

// The name of an attribute, made once instead of at every look-up.
inline nb::object interned(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }

// The only place where an Error becomes an exception of slackwater.errors.
[[nodiscard]] nb::object to_exception(const Error& error);
[[noreturn]] void raise(const Error& error);
// The reverse, for a DamagedError that Python code raised. Nothing for any other exception.
[[nodiscard]] std::optional<Error> damage_in(const nb::python_error& raised);

template <class T>
T value_or_raise(Result<T> result) {
  if (!result.has_value()) raise(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// Seconds as Python gives them; negative counts as 0.
[[nodiscard]] std::optional<std::chrono::milliseconds> to_milliseconds(std::optional<double> seconds);

// A copy of a checkpoint's metadata, so that Python never holds a reference into the engine.
struct Contents {
  VersionInfo version;
  std::vector<TensorInfo> tensors;
  std::string tree;
  std::map<std::string, std::string> metadata;
  std::vector<std::string> rank_local_values;
};
[[nodiscard]] Contents contents_of(const Checkpoint& checkpoint);

// [(name, dtype, shape, strides or None, address, device), ...]. A box of a global tensor has a seventh field,
// (global_shape, offset).
using TargetList = nb::typed<nb::list, nb::any>;
[[nodiscard]] std::vector<Target> to_targets(const nb::list& items);
[[nodiscard]] std::vector<std::int64_t> to_sizes(nb::handle sequence);
[[nodiscard]] DType to_dtype(nb::handle name);
// [(device, handle), ...]
using StreamList = std::vector<std::pair<int, std::uintptr_t>>;
[[nodiscard]] std::vector<StreamRef> to_streams(const StreamList& items);

}  // namespace slackwater::python
