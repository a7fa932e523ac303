// The GIL, given up and taken again, where the interpreter may end meanwhile.
//
// A daemon thread may be in here when the program ends. CPython before 3.14 ends such a thread in the moment it asks for the GIL, by
// pthread_exit(), which unwinds its stack like an exception that nobody may catch; and since destructors, and the functions of
// nanobind, let none pass, that would abort the whole process: exit code 134 after everything was saved. So the thread stops here, for ever,
// as CPython 3.14 lets it; the end of the process takes it along.
// Thread rule: as it says; on the stack only.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace slackwater::python {

[[noreturn]] inline void stop_for_ever() noexcept {
  for (;;) ::pause();
}

// For calls into Python, which may ask for the GIL anew.
template <class Call>
auto or_stop_for_ever(Call&& call) noexcept {
  try {
    return call();
  } catch (...) {  // only the unwinding of pthread_exit() comes here, and it must not go on
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
