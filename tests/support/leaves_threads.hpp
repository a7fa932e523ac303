// Included by tests with disks that hang: close() then leaves threads behind on purpose, and ThreadSanitizer must not
// report them. The rule holds for a whole program, so tests that include this share none with tests that do not.
// Include it in one file of a program only, or in files that are compiled as one.
#pragma once

extern "C" const char* __tsan_default_options();
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "report_thread_leaks=0";
}
