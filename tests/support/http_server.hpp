// HttpServer: a server on loopback that answers as a test says, one request at a time per connection. It can break off
// in the middle of a request or of an answer. For tests of the object store client, without an object store.
// Thread rule: the handler runs on the server's own threads, one call at a time.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.hpp"

namespace slackwater::test {

struct WebRequest {
  std::string method;
  std::string target;                          // path and query, as sent
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

struct WebAnswer {
  int status = 200;
  std::string body = {};
  std::map<std::string, std::string> headers = {};
  std::size_t sent_of_body = SIZE_MAX;  // then the connection breaks
  bool no_answer = false;               // breaks off without a word
};

class HttpServer {
 public:
  using Handler = std::function<WebAnswer(const WebRequest&)>;

  explicit HttpServer(Handler handler) : handler_(std::move(handler)) {
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener_.get(), 64) != 0 ||
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw std::runtime_error("no port on loopback");
    port_ = ntohs(address.sin_port);
    acceptor_ = std::jthread([this](const std::stop_token& stop) { accept_until(stop); });
  }
  ~HttpServer() {
    acceptor_.request_stop();
    acceptor_.join();
    connections_.clear();
  }

  // Called for each request before the handler, on several threads at once: it may hold a request back until others
  // have arrived. To be set before the first request.
  void set_on_arrival(std::function<void(const WebRequest&)> call) { on_arrival_ = std::move(call); }

  [[nodiscard]] std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }
  [[nodiscard]] int connections() const { return accepted_; }

 private:
  static bool readable(int descriptor, const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      pollfd waiting{.fd = descriptor, .events = POLLIN, .revents = 0};
      if (::poll(&waiting, 1, 20) > 0) return true;
    }
    return false;
  }

  void accept_until(const std::stop_token& stop) {
    while (readable(listener_.get(), stop)) {
      const int descriptor = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (descriptor < 0) continue;
      ++accepted_;
      connections_.emplace_back(
          [this, descriptor](const std::stop_token& ended) { serve(UniqueFd(descriptor), ended); });
    }
  }

  void serve(UniqueFd socket, const std::stop_token& stop) {
    std::string buffer;
    const auto more = [&] {
      std::array<char, 65536> bytes{};
      if (!readable(socket.get(), stop)) return false;
      const ssize_t size = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
      if (size > 0) buffer.append(bytes.data(), static_cast<std::size_t>(size));
      return size > 0;
    };
    for (;;) {
      std::size_t end = 0;
      while ((end = buffer.find("\r\n\r\n")) == std::string::npos)
        if (!more()) return;
      WebRequest request = parse(buffer.substr(0, end));
      const auto length = request.headers.find("content-length");
      const std::size_t size = length == request.headers.end() ? 0 : std::stoull(length->second);
      while (buffer.size() < end + 4 + size)
        if (!more()) return;
      request.body = buffer.substr(end + 4, size);
      buffer.erase(0, end + 4 + size);
      if (on_arrival_) on_arrival_(request);
      WebAnswer answer;
      {
        const std::lock_guard lock(handling_);
        answer = handler_(request);
      }
      if (answer.no_answer) return;
      std::string text = "HTTP/1.1 " + std::to_string(answer.status) + " X\r\n";
      if (!answer.headers.contains("Content-Length"))
        answer.headers["Content-Length"] = std::to_string(answer.body.size());
      for (const auto& [name, value] : answer.headers) text += name + ": " + value + "\r\n";
      text += "\r\n";
      if (request.method != "HEAD") text += answer.body.substr(0, answer.sent_of_body);
      for (std::size_t sent = 0; sent < text.size();) {
        const ssize_t count = ::send(socket.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
        if (count <= 0) return;
        sent += static_cast<std::size_t>(count);
      }
      if (answer.sent_of_body < answer.body.size()) return;
    }
  }

  static WebRequest parse(const std::string& head) {
    WebRequest request;
    const std::size_t first = head.find(' ');
    request.method = head.substr(0, first);
    request.target = head.substr(first + 1, head.find(' ', first + 1) - first - 1);
    for (std::size_t at = head.find("\r\n"); at != std::string::npos; at = head.find("\r\n", at + 2)) {
      const std::size_t colon = head.find(':', at);
      if (colon == std::string::npos) break;
      std::string name = head.substr(at + 2, colon - at - 2);
      for (char& c : name) c = static_cast<char>(std::tolower(c));
      const std::size_t stop = std::min(head.find("\r\n", colon), head.size());
      request.headers[name] = head.substr(std::min(colon + 2, stop), stop - std::min(colon + 2, stop));
    }
    return request;
  }

  const Handler handler_;
  std::function<void(const WebRequest&)> on_arrival_;
  std::mutex handling_;
  UniqueFd listener_;
  int port_ = 0;
  std::atomic<int> accepted_ = 0;
  std::vector<std::jthread> connections_;  // used by the acceptor, and by the destructor after it
  std::jthread acceptor_;
};

}  // namespace slackwater::test
