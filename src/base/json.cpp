#include "base/json.hpp"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"

namespace slackwater {
namespace {

constexpr std::string_view kTailStart = ",\"digest\":\"";
constexpr std::string_view kTailEnd = "\"}\n";
constexpr std::size_t kTailBytes = kTailStart.size() + 32 + kTailEnd.size();

// Builds the value from parser events. The library's own builder keeps the last of duplicate keys and accepts any
// depth. Every event returns whether parsing goes on.
class Builder {
 public:
  explicit Builder(int max_depth) : max_depth_(max_depth) {}

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(Json::number_integer_t value) { return add(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return add(value); }
  bool number_float(Json::number_float_t value, const std::string& /*text*/) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(Json::binary_t& /*value*/) { return refuse("holds binary data"); }
  bool start_object(std::size_t /*size*/) { return open(Json::object()); }
  bool start_array(std::size_t /*size*/) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    const auto [member, inserted] = open_.back()->get_ref<Json::object_t&>().try_emplace(name);
    if (!inserted) return refuse(fmt::format("has the key '{}' twice", name));
    member_ = &member->second;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/, const Json::exception& error) {
    return refuse(fmt::format("is not valid JSON near byte {}: {}", position, error.what()));
  }

  [[nodiscard]] Json take() { return std::move(root_); }
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  // Puts a value after its key, at the end of the open array, or at the root.
  Json* place(Json value) {
    ++values_;
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_object()) {
      *member_ = std::move(value);
      return member_;
    }
    auto& array = open_.back()->get_ref<Json::array_t&>();
    array.push_back(std::move(value));
    return &array.back();
  }

  bool add(Json value) { return below_limit() && place(std::move(value)) != nullptr; }

  bool open(Json container) {
    if (std::cmp_greater_equal(open_.size(), max_depth_)) {
      return refuse(fmt::format("is nested deeper than {} levels", max_depth_));
    }
    if (!below_limit()) return false;
    open_.push_back(place(std::move(container)));
    return true;
  }

  bool below_limit() {
    return values_ < kMaxJsonValues || refuse(fmt::format("holds more than {} values", kMaxJsonValues));
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  bool refuse(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  const int max_depth_;
  std::size_t values_ = 0;
  Json root_;
  std::vector<Json*> open_;  // containers being filled, outermost first; none moves while an inner one is open
  Json* member_ = nullptr;   // in the innermost object; waits for its value
  std::string problem_;
};

std::unexpected<Error> corrupt(std::string what, const std::string& path) {
  return fail(ErrorKind::kCorrupt, std::move(what), path);
}

std::unexpected<Error> bad_field(const char* key, const char* wanted, const std::string& path) {
  return corrupt(fmt::format("field '{}' is missing or not {}", key, wanted), path);
}

const Json* find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto member = object.find(key);
  return member == object.end() ? nullptr : &*member;
}

}  // namespace

Result<Json> parse_json(std::string_view text, const std::string& path, int max_depth) {
  // The library takes a NUL as the end of the text and would ignore what follows.
  if (text.find('\0') != std::string_view::npos)
    return corrupt("the text is not valid JSON: it holds a NUL byte", path);
  Builder builder(max_depth);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return corrupt(fmt::format("the text {}", builder.problem()), path);
  }
  return builder.take();
}

Result<std::uint64_t> json_u64(const Json& object, const char* key, const std::string& path) {
  const Json* value = find(object, key);
  const bool whole = value != nullptr && value->is_number_integer() &&
                     (value->is_number_unsigned() || value->get<std::int64_t>() >= 0);
  if (!whole) return bad_field(key, "a whole number", path);
  return value->get<std::uint64_t>();
}

Result<std::string> json_string(const Json& object, const char* key, const std::string& path) {
  const Json* value = find(object, key);
  if (value == nullptr || !value->is_string()) return bad_field(key, "a text", path);
  return value->get<std::string>();
}

Result<const Json*> json_array(const Json& object, const char* key, const std::string& path) {
  const Json* value = find(object, key);
  if (value == nullptr || !value->is_array()) return bad_field(key, "a list", path);
  return value;
}

Result<const Json*> json_object(const Json& object, const char* key, const std::string& path) {
  const Json* value = find(object, key);
  if (value == nullptr || !value->is_object()) return bad_field(key, "an object", path);
  return value;
}

std::string seal_json(const Json& object) {
  // Text that is not UTF-8, such as a strange host name, becomes U+FFFD. It is no reason to fail a checkpoint.
  std::string text = object.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.pop_back();  // the closing brace
  return seal_json_text(std::move(text));
}

std::string seal_json_text(std::string body) {
  const std::string digest = to_hex(digest128(body));
  return std::move(body.append(kTailStart).append(digest).append(kTailEnd));
}

Result<std::string_view> open_sealed_text(std::string_view text, const std::string& path) {
  if (text.size() <= kTailBytes || !text.ends_with(kTailEnd)) {
    return corrupt("the file is cut short or was not written by Slackwater: its closing digest is missing", path);
  }
  const std::string_view body = text.substr(0, text.size() - kTailBytes);
  const std::string_view tail = text.substr(body.size());
  if (!tail.starts_with(kTailStart)) {
    return corrupt("the file is damaged or was not written by Slackwater: its closing digest is missing", path);
  }
  const auto expected = digest128_from_hex(tail.substr(kTailStart.size(), 32));
  if (!expected || *expected != digest128(body)) {
    return corrupt("the file is damaged: its bytes do not match the digest it closes with", path);
  }
  return body;
}

Result<Json> open_sealed_json(std::string_view text, const std::string& path) {
  SW_TRY(open_sealed_text(text, path));
  SW_ASSIGN(Json object, parse_json(text, path));
  if (!object.is_object()) return corrupt("the file does not hold a JSON object", path);
  object.erase("digest");
  return object;
}

}  // namespace slackwater
