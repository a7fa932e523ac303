// GatedTensor: a tensor whose first reader stops until the test lets it continue. So a test can hold save() in the
// middle of its capture for as long as it wants, without any hook in the product.
//
// The pages cannot be read at first. A thread that reads them gets a SIGSEGV. The handler reports it, waits for open(),
// makes the pages readable and lets the same instruction run again. It makes only async-signal-safe calls.
// One at a time in a process. Thread rule: as it says. Lifetime: outlives whoever reads it.
#pragma once

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "slackwater/tensor.hpp"

namespace slackwater::test {

class GatedTensor {
 public:
  GatedTensor() {
    memory_ = ::mmap(nullptr, kSizeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    reached_ = ::eventfd(0, 0);
    opened_ = ::eventfd(0, 0);
    if (memory_ == MAP_FAILED || reached_ < 0 || opened_ < 0) throw std::runtime_error("no memory for a gated tensor");
    current_ = this;
    struct sigaction action{};
    action.sa_sigaction = &GatedTensor::on_fault;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &action, &previous_);
  }
  ~GatedTensor() {
    ::sigaction(SIGSEGV, &previous_, nullptr);
    current_ = nullptr;
    ::munmap(memory_, kSizeBytes);
    ::close(reached_);
    ::close(opened_);
  }
  GatedTensor(const GatedTensor&) = delete;
  GatedTensor& operator=(const GatedTensor&) = delete;

  // Captured inside save().
  [[nodiscard]] Tensor tensor(const std::string& name) const {
    return {.name = name,
            .dtype = DType::kU8,
            .shape = {static_cast<std::int64_t>(kSizeBytes)},
            .data = memory_,
            .at_once = true};
  }
  void wait_reached() const { take(reached_); }  // until somebody reads it
  void open() const { give(opened_); }           // who reads it goes on, and so do all after it

 private:
  static constexpr std::size_t kSizeBytes = 1u << 16;

  static void on_fault(int number, siginfo_t* info, void*) {
    const auto* const at = static_cast<const std::byte*>(info->si_addr);
    const auto* const begin = current_ != nullptr ? static_cast<const std::byte*>(current_->memory_) : nullptr;
    if (begin == nullptr || at < begin || at >= begin + kSizeBytes) {  // a crash like any other
      ::signal(number, SIG_DFL);
      return;
    }
    give(current_->reached_);
    take(current_->opened_);
    ::mprotect(current_->memory_, kSizeBytes, PROT_READ | PROT_WRITE);
  }
  static void give(int event) {
    const std::uint64_t one = 1;
    while (::write(event, &one, sizeof one) < 0) continue;
  }
  static void take(int event) {
    std::uint64_t count = 0;
    while (::read(event, &count, sizeof count) < 0) continue;
  }

  static inline GatedTensor* current_ = nullptr;  // the handler of a signal knows nothing else
  void* memory_ = nullptr;
  int reached_ = -1;
  int opened_ = -1;
  struct sigaction previous_{};
};

}  // namespace slackwater::test
