// Waiting as Python programs expect it: without the GIL, and Ctrl-C works.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "bindings.hpp"

namespace slackwater::python {

[[nodiscard]] Level to_level(const std::string& name);

// Calls done_within(slice) without the GIL until it returns true or the time is over. Signal handlers run between
// slices; an exception from one of them (KeyboardInterrupt) ends the wait.
template <class DoneWithin>
void wait_in_slices(std::optional<double> timeout_seconds, DoneWithin&& done_within) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kSlice{100};
  const auto timeout = to_milliseconds(timeout_seconds);
  const auto start = Clock::now();
  for (;;) {
    std::chrono::milliseconds slice = kSlice;
    bool last = false;
    if (timeout) {
      const auto left = *timeout - std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
      last = left <= kSlice;
      slice = std::clamp(left, std::chrono::milliseconds(0), kSlice);
    }
    bool done = false;
    {
      const WithoutGil release;
      done = done_within(slice);
    }
    if (done || last) return;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

}  // namespace slackwater::python
