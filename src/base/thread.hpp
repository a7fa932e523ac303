// Named threads that are always joined. Blocks all signals in the new thread, so that the trainer's handlers run on its own threads.
#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <thread>

namespace slackwater {

// `name` has at most 15 characters ("sw-copy-0"); it shows in top -H and in debuggers. As std::jthread, it throws
// std::system_error when the process may have no more threads; who starts threads turns that into an Error.
[[nodiscard]] std::jthread start_thread(std::string name, std::function<void(std::stop_token)> body);

}  // namespace slackwater
