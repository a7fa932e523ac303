// Starts named threads, which are always joined. They block all signals but faults, so that the trainer's handlers run
// on the trainer's own threads.
#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <thread>

namespace slackwater {

// `name` has at most 15 characters ("sw-copy-0") and shows in top -H and in debuggers. Like std::jthread, this throws
// std::system_error if the process may not have more threads. The caller turns that into an Error.
[[nodiscard]] std::jthread start_thread(std::string name, std::function<void(std::stop_token)> body);

// For work that may take its time: this thread, and those that it starts, let others go first (nice 10). Training on a
// busy machine then does not pay for it.
void lower_priority();

}  // namespace slackwater
