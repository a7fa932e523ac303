// Releasing and taking the GIL when the interpreter may end meanwhile.
//
// A daemon thread may be inside the engine when the program ends. CPython before 3.14 ends such a thread when it asks
// for the GIL, by pthread_exit(). That unwinds the stack like an exception that nobody may catch. Destructors and
// nanobind's functions let no exception pass, so the whole process would abort: exit code 134 after everything was
// saved. Instead the thread stops here for ever, as it does in CPython 3.14, and ends with the process.
// Thread rule: WithoutGil needs the GIL, WithGil any thread.
// Lifetime: on the stack only.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace slackwater::python {

[[noreturn]] inline void stop_for_ever() noexcept {
  for (;;) ::pause();
}

// For calls into Python that may take the GIL.
template <class Call>
auto or_stop_for_ever(Call&& call) noexcept {
  try {
    return call();
  } catch (...) {  // only the unwinding of pthread_exit() gets here, and it must not continue
    stop_for_ever();
  }
}

class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    or_stop_for_ever([this] { PyEval_RestoreThread(state_); });
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

class WithGil {
 public:
  WithGil() : state_(or_stop_for_ever([] { return PyGILState_Ensure(); })) {}
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  const PyGILState_STATE state_;
};

}  // namespace slackwater::python
