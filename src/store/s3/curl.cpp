#include "store/s3/curl.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <vector>

#include <fmt/format.h>

#include "base/result.hpp"

namespace slackwater::s3 {
namespace {

template <class Function>
bool find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

}  // namespace

Result<std::shared_ptr<const Curl>> Curl::load(std::span<const std::string> libraries) {
  // Before 7.84, libcurl's set-up must not run on two threads at once.
  static std::mutex loading;
  const std::lock_guard lock(loading);

  void* library = nullptr;
  std::string why;
  std::string loaded;
  for (const std::string& name : libraries) {
    ::dlerror();
    library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: it may have started threads
    loaded = name;
    if (library != nullptr) break;
    const char* const reason = ::dlerror();
    if (why.empty()) why = reason != nullptr ? reason : name;
  }
  if (library == nullptr) {
    return fail(ErrorKind::kUnsupported,
                fmt::format("cannot load libcurl, which s3:// locations need ({}); install it (Debian and Ubuntu: apt "
                            "install libcurl4), or name its file in SLACKWATER_LIBCURL",
                            why));
  }
  auto curl = std::make_shared<Curl>();
  const bool complete = find_function(library, "curl_global_init", curl->global_init) &&
                        find_function(library, "curl_easy_init", curl->easy_init) &&
                        find_function(library, "curl_easy_setopt", curl->easy_setopt) &&
                        find_function(library, "curl_easy_perform", curl->easy_perform) &&
                        find_function(library, "curl_easy_getinfo", curl->easy_getinfo) &&
                        find_function(library, "curl_easy_reset", curl->easy_reset) &&
                        find_function(library, "curl_easy_cleanup", curl->easy_cleanup) &&
                        find_function(library, "curl_easy_strerror", curl->easy_strerror) &&
                        find_function(library, "curl_slist_append", curl->slist_append) &&
                        find_function(library, "curl_slist_free_all", curl->slist_free_all) &&
                        find_function(library, "curl_version", curl->version);
  if (!complete) {
    return fail(ErrorKind::kUnsupported,
                fmt::format("'{}' is not a usable libcurl: it lacks required functions", loaded));
  }
  constexpr long kDefault = 3;  // TLS included
  if (curl->global_init(kDefault) != 0) return fail(ErrorKind::kUnsupported, "libcurl cannot set itself up");
  return curl;
}

Result<std::shared_ptr<const Curl>> Curl::load() {
  if (const char* const named = std::getenv("SLACKWATER_LIBCURL"); named != nullptr && *named != '\0')
    return load(std::vector<std::string>{named});
  return load(std::vector<std::string>{"libcurl.so.4", "libcurl-gnutls.so.4"});
}

}  // namespace slackwater::s3
