#include <nanobind/stl/string.h>

#include "bindings.hpp"

namespace slackwater::python {
namespace {

const char* exception_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument: return "UsageError";
    case ErrorKind::kNotFound: return "NotFoundError";
    case ErrorKind::kAlreadyExists: return "StorageError";
    case ErrorKind::kPermission: return "PermissionDeniedError";
    case ErrorKind::kNoSpace: return "NoSpaceError";
    case ErrorKind::kIo: return "StorageError";
    case ErrorKind::kCorrupt: return "DamagedError";
    case ErrorKind::kMismatch: return "MismatchError";
    case ErrorKind::kTimeout: return "TimeoutError";
    case ErrorKind::kBusy: return "BusyError";
    case ErrorKind::kTorn: return "TornError";
    case ErrorKind::kAborted: return "AbortedError";
    case ErrorKind::kInDoubt: return "InDoubtError";
    case ErrorKind::kClosed: return "ClosedError";
    case ErrorKind::kUnsupported: return "UnsupportedError";
    case ErrorKind::kOutOfMemory: return "OutOfMemoryError";
    case ErrorKind::kInternal: return "InternalError";
    case ErrorKind::kDevice: return "DeviceError";
  }
  return "InternalError";
}

}  // namespace

nb::object to_exception(const Error& error) {
  const std::string text = error.to_string();
  // Imported here and not at start-up, so that the extension alone (stub generation) needs no package around it.
  const nb::object type = nb::module_::import_("slackwater.errors").attr(exception_name(error.kind));
  // An error may quote bytes of a damaged file, so decoding must not fail.
  const nb::object message =
      nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
  const nb::object path =
      nb::steal(PyUnicode_DecodeUTF8(error.path.data(), static_cast<Py_ssize_t>(error.path.size()), "surrogateescape"));
  const nb::object tensor =
      nb::steal(PyUnicode_DecodeUTF8(error.tensor.data(), static_cast<Py_ssize_t>(error.tensor.size()), "replace"));
  return type(message, nb::arg("path") = path, nb::arg("errno") = error.sys_errno,
              nb::arg("retryable") = error.retryable, nb::arg("tensor") = tensor);
}

void raise(const Error& error) {
  const nb::object exception = to_exception(error);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

std::optional<Error> damage_in(const nb::python_error& raised) {
  if (!nb::isinstance(raised.value(), nb::module_::import_("slackwater.errors").attr("DamagedError")))
    return std::nullopt;
  // A path may contain any bytes; surrogateescape restores them.
  const auto text = [&](const char* name) {
    return nb::cast<nb::bytes>(nb::str(raised.value().attr(name)).attr("encode")("utf-8", "surrogateescape"));
  };
  Error error{.kind = ErrorKind::kCorrupt,
              .message = text("message").c_str(),
              .path = text("path").c_str(),
              .tensor = text("tensor").c_str()};
  // The text that Python shows ends with the path, which to_string() appends again.
  if (const std::string ending = ": " + error.path; !error.path.empty() && error.message.ends_with(ending))
    error.message.resize(error.message.size() - ending.size());
  return error;
}

std::optional<std::chrono::milliseconds> to_milliseconds(std::optional<double> seconds) {
  if (!seconds) return std::nullopt;
  constexpr double kYear = 366.0 * 86400;
  // Rounded up, so that a tiny time-out does not become 0. NaN counts as 0.
  const double bounded = *seconds > 0 ? (*seconds < kYear ? *seconds : kYear) : 0;
  return std::chrono::milliseconds(static_cast<std::int64_t>(bounded * 1000 + 0.999));
}

}  // namespace slackwater::python
