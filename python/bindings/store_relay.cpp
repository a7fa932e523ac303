#include "store_relay.hpp"

#include <utility>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"

namespace slackwater::python {
namespace {

Error closed_error() { return {ErrorKind::kClosed, "the store of the ranks is closed", {}, 0, false}; }

const char* verb_name(StoreRelay::Verb verb) {
  switch (verb) {
    case StoreRelay::Verb::kSet: return "set";
    case StoreRelay::Verb::kGet: return "get";
    case StoreRelay::Verb::kRemove: return "remove";
  }
  return "get";
}

// (number, "set" | "get" | "remove", keys, value), or None when closed.
nb::object next_call(const StoreRelayHandle& self) {
  std::optional<StoreRelay::Numbered> taken = [&] {
    const WithoutGil release;
    return self.relay->next();
  }();
  if (!taken) return nb::none();
  nb::list keys;
  for (const std::string& key : taken->call.keys) keys.append(nb::str(key.data(), key.size()));
  return nb::make_tuple(taken->number, verb_name(taken->call.verb), keys,
                        nb::bytes(taken->call.value.data(), taken->call.value.size()));
}

StoreRelay::Values to_values(const nb::list& items) {
  StoreRelay::Values values;
  for (const nb::handle item : items) {
    if (item.is_none()) {
      values.emplace_back();
      continue;
    }
    const auto bytes = nb::cast<nb::bytes>(item);
    values.emplace_back(std::in_place, bytes.c_str(), bytes.size());
  }
  return values;
}

}  // namespace

Result<StoreRelay::Values> StoreRelay::ask(Call call) {
  std::unique_lock lock(mutex_);
  if (closed_) return fail(closed_error());
  const std::uint64_t number = ++last_;
  open_.emplace(number, std::nullopt);
  calls_.push_back({number, std::move(call)});
  called_.notify_one();
  const bool in_time = answered_.wait_for(lock, timeout_, [&] { return closed_ || open_.at(number).has_value(); });
  auto outcome = std::move(open_.extract(number).mapped());
  if (outcome) return std::move(*outcome);
  std::erase_if(calls_, [&](const Numbered& waiting) { return waiting.number == number; });
  if (in_time) return fail(closed_error());
  return fail(Error{ErrorKind::kTimeout, "the store of the ranks does not answer", {}, 0, true});
}

Status StoreRelay::set(const std::string& key, const std::string& value) {
  if (auto done = ask({Verb::kSet, {key}, value}); !done) return fail(std::move(done).error());
  return {};
}

Result<StoreRelay::Values> StoreRelay::get(const std::vector<std::string>& keys) { return ask({Verb::kGet, keys, {}}); }

void StoreRelay::remove(const std::vector<std::string>& keys) { static_cast<void>(ask({Verb::kRemove, keys, {}})); }

std::optional<StoreRelay::Numbered> StoreRelay::next() {
  std::unique_lock lock(mutex_);
  called_.wait(lock, [&] { return closed_ || !calls_.empty(); });
  if (closed_) return std::nullopt;
  Numbered taken = std::move(calls_.front());
  calls_.pop_front();
  return taken;
}

void StoreRelay::answer(std::uint64_t number, Result<Values> outcome) {
  {
    const std::lock_guard lock(mutex_);
    const auto waiting = open_.find(number);
    if (waiting == open_.end()) return;
    waiting->second.emplace(std::move(outcome));
  }
  answered_.notify_all();
}

void StoreRelay::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  called_.notify_all();
  answered_.notify_all();
}

void bind_store_relay(nb::module_& module) {
  nb::class_<StoreRelayHandle>(
      module, "StoreRelay", "Carries the engine's calls of a key-value store to the Python thread that answers them.")
      .def(
          "__init__",
          [](StoreRelayHandle* self, double timeout) {
            new (self) StoreRelayHandle{std::make_shared<StoreRelay>(*to_milliseconds(timeout))};
          },
          nb::arg("timeout"), "`timeout`: seconds the engine waits for an answer.")
      .def(
          "next", &next_call, nb::sig("def next(self) -> tuple[int, str, list[str], bytes] | None"),
          "Wait, without the GIL, for a call: (number, \"set\" | \"get\" | \"remove\", keys, value); None when closed.")
      .def(
          "answer",
          [](const StoreRelayHandle& self, std::uint64_t number, const nb::list& values) {
            self.relay->answer(number, to_values(values));
          },
          nb::arg("number"), nb::arg("values"),
          nb::sig("def answer(self, number: int, values: list[bytes | None]) -> None"),
          "One value per key for \"get\", nothing for the others.")
      .def(
          "fail",
          [](const StoreRelayHandle& self, std::uint64_t number, const std::string& message, bool retryable) {
            const ErrorKind kind = retryable ? ErrorKind::kTimeout : ErrorKind::kIo;
            self.relay->answer(number, fail(Error{kind, message, {}, 0, retryable}));
          },
          nb::arg("number"), nb::arg("message"), nb::arg("retryable") = false)
      .def("close", [](const StoreRelayHandle& self) { self.relay->close(); });
}

}  // namespace slackwater::python
