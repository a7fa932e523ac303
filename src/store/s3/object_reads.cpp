// The parts of ObjectClient that read: ranges, whole objects, lists. And create(), which reads before and after.
#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/scan.hpp"
#include "store/s3/object_client.hpp"

namespace slackwater::s3 {
namespace {

struct ContentRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::optional<std::uint64_t> size_bytes;  // of the object; nullopt: "*"
};

std::optional<ContentRange> parse_content_range(std::string_view text) {
  ContentRange range;
  if (!take_prefix(text, "bytes ") || !take_number(text, range.first) || !take_prefix(text, "-") ||
      !take_number(text, range.last) || !take_prefix(text, "/"))
    return std::nullopt;
  if (text != "*") {
    std::uint64_t size = 0;
    if (!take_number(text, size) || !text.empty()) return std::nullopt;
    range.size_bytes = size;
  }
  return range;
}

// Where the bytes of one ranged read go. Some servers answer 206 with the range, some 200 with the range, and some 200
// with the whole object, of which what lies before our range is passed over.
class RangeSink {
 public:
  RangeSink(std::span<std::byte> into, std::uint64_t offset, std::uint64_t size_bytes)
      : into_(into), offset_(offset), size_bytes_(size_bytes) {}

  // A further try goes on behind what has arrived.
  std::string begin_try() {
    begun_ = false;
    problem_.clear();
    return fmt::format("bytes={}-{}", offset_ + received_, offset_ + into_.size() - 1);
  }

  bool take(const HttpAnswer& answer, std::span<const std::byte> bytes) {
    if (!begun_ && !begin_answer(answer)) return false;
    const std::uint64_t passed = std::min<std::uint64_t>(skip_, bytes.size());
    skip_ -= passed;
    bytes = bytes.subspan(passed);
    const std::size_t taken = std::min<std::size_t>(bytes.size(), into_.size() - received_);
    if (taken > 0) std::memcpy(into_.data() + received_, bytes.data(), taken);
    received_ += taken;
    return received_ < into_.size() || bytes.size() == taken;
  }

  Status finish() const {
    if (problem_.empty() && received_ == into_.size()) return {};
    return fail(Error{
        .kind = ErrorKind::kIo,
        .message = fmt::format("cannot read the object: {}",
                               problem_.empty() ? "the answer is shorter than the range that was asked for" : problem_),
        .retryable = true});
  }

 private:
  bool begin_answer(const HttpAnswer& answer) {
    begun_ = true;
    const std::uint64_t wanted = offset_ + received_;
    const std::string text = answer.header("content-range");
    if (answer.status == 206 || !text.empty()) {
      const auto range = parse_content_range(text);
      const bool exact = range && range->first == wanted && range->last == offset_ + into_.size() - 1;
      if (!exact) problem_ = fmt::format("asked for another range than '{}'", printable(text));
      if (exact && range->size_bytes.value_or(size_bytes_) != size_bytes_)
        problem_ = fmt::format("it has {} bytes now, not {}", *range->size_bytes, size_bytes_);
      skip_ = 0;
    } else {
      skip_ = wanted;
    }
    return problem_.empty();
  }

  const std::span<std::byte> into_;
  const std::uint64_t offset_;
  const std::uint64_t size_bytes_;
  std::size_t received_ = 0;
  std::uint64_t skip_ = 0;
  bool begun_ = false;
  std::string problem_;
};

constexpr unsigned kPageKeys = 1000;
constexpr std::size_t kMaxPages = 100'000;

}  // namespace

Status ObjectClient::read(const std::string& key, std::span<std::byte> into, std::uint64_t offset,
                          std::uint64_t size_bytes) {
  if (into.empty()) return {};
  RangeSink sink(into, offset, size_bytes);
  ObjectCall call{.doing = "cannot read the object", .method = "GET", .key = key};
  call.expected_bytes = into.size();
  call.before_try = [&](ObjectCall& next) { next.headers = {{"range", sink.begin_try()}}; };
  call.sink = [&](const HttpAnswer& answer, std::span<const std::byte> bytes) { return sink.take(answer, bytes); };
  call.check = [&](const HttpAnswer&) { return sink.finish(); };
  SW_TRY(send(std::move(call)));
  return {};
}

Result<std::string> ObjectClient::read_whole(const std::string& key, std::uint64_t max_bytes) {
  std::string text;
  bool too_long = false;
  ObjectCall call{.doing = "cannot read the object", .method = "GET", .key = key};
  call.expected_bytes = max_bytes;
  call.before_try = [&](ObjectCall&) { text.clear(); };
  call.sink = [&](const HttpAnswer&, std::span<const std::byte> bytes) {
    too_long = text.size() + bytes.size() > max_bytes;
    if (!too_long) text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return !too_long;
  };
  SW_TRY(send(std::move(call)));
  if (too_long) return fail(ErrorKind::kCorrupt, "the object is larger than such a file can be", path_of(key));
  return text;
}

// Whether the object is there with exactly these bytes. kNotFound: it is not there.
Result<bool> ObjectClient::holds(const std::string& key, std::string_view bytes) {
  const auto found = read_whole(key, bytes.size());
  if (found) return *found == bytes;
  if (found.error().kind == ErrorKind::kCorrupt) return false;
  return fail(found.error());
}

Status ObjectClient::create(const std::string& key, std::string_view bytes) {
  const std::array pieces{std::as_bytes(std::span(bytes))};
  MemorySource source(pieces);
  std::atomic<Capability>& if_none = capabilities_.if_none;
  const auto taken = [&] {
    return fail(ErrorKind::kAlreadyExists, "cannot create the object: its name is taken", path_of(key));
  };
  // 1. A server that does not know conditional writes would overwrite what is there. So look first, unless we know that
  //    this one does.
  if (if_none != Capability::kYes) {
    const auto there = holds(key, bytes);
    if (there) return *there ? Status() : taken();
    if (there.error().kind != ErrorKind::kNotFound) return fail(there.error());
  }
  // 2. The write itself. After a reply that got lost, the retry finds the name taken - by our own bytes.
  const Status written = if_none == Capability::kNo ? put(key, source, false) : put(key, source, true);
  if (!written && written.error().kind == ErrorKind::kAlreadyExists) {
    if_none = Capability::kYes;
    SW_ASSIGN(const bool ours, holds(key, bytes));
    return ours ? Status() : taken();
  }
  if (!written && written.error().kind == ErrorKind::kUnsupported && if_none == Capability::kUnknown) {
    if_none = Capability::kNo;
    SW_TRY(put(key, source, false));
  } else if (!written) {
    return written;
  }
  // 3. Find out, once, whether the server means it: the same bytes again must be refused.
  if (if_none == Capability::kUnknown) {
    const Status again = put(key, source, true);
    if (again) if_none = Capability::kNo;
    if (!again && again.error().kind == ErrorKind::kAlreadyExists) if_none = Capability::kYes;
  }
  if (if_none == Capability::kYes) return {};
  // 4. It does not: another writer may have come between. The last one wins, and each reads back who that was.
  SW_ASSIGN(const bool ours, holds(key, bytes));
  return ours ? Status() : taken();
}

Result<ObjectPage> parse_object_page(const XmlElement& root) {
  ObjectPage page;
  const bool encoded = root.text_of("EncodingType") == "url";
  const auto decoded = [&](const std::string& name) { return encoded ? decode_percent(name) : name; };
  for (const XmlElement& child : root.children) {
    if (child.name == "Contents") {
      const auto size = child.number_of("Size");
      const std::string key = child.text_of("Key");
      if (key.empty() || !size)
        return fail(ErrorKind::kCorrupt, "the object store lists an object without a name or size");
      page.objects.push_back({decoded(key), *size});
    } else if (child.name == "CommonPrefixes") {
      page.prefixes.push_back(decoded(child.text_of("Prefix")));
    }
  }
  if (root.text_of("IsTruncated") == "true") {
    page.next = root.text_of("NextContinuationToken");
    if (page.next.empty())
      return fail(ErrorKind::kCorrupt, "the object store's list is cut short without a continuation");
  }
  return page;
}

Result<ObjectPage> ObjectClient::list_page(const std::string& prefix, std::string_view delimiter, unsigned max_keys,
                                           const std::string& token) {
  Query query{
      {"list-type", "2"}, {"prefix", prefix}, {"max-keys", fmt::format("{}", max_keys)}, {"encoding-type", "url"}};
  if (!delimiter.empty()) query.emplace_back("delimiter", delimiter);
  if (!token.empty()) query.emplace_back("continuation-token", token);
  SW_ASSIGN(const XmlElement root,
            send_for_xml({.doing = "cannot list the objects", .method = "GET", .key = {}, .query = std::move(query)},
                         "ListBucketResult"));
  auto page = parse_object_page(root);
  if (!page) {
    page.error().path = path_of(prefix);
    return page;
  }
  // A server that lists what we did not ask for must not get it into our names.
  std::erase_if(page->objects, [&](const ObjectInfo& object) { return !object.key.starts_with(prefix); });
  std::erase_if(page->prefixes, [&](const std::string& name) { return !name.starts_with(prefix); });
  return page;
}

Result<ObjectPage> ObjectClient::list(const std::string& prefix, std::string_view delimiter) {
  ObjectPage all;
  std::string token;
  for (std::size_t pages = 0; pages < kMaxPages; ++pages) {
    SW_ASSIGN(ObjectPage page, list_page(prefix, delimiter, kPageKeys, token));
    std::ranges::move(page.objects, std::back_inserter(all.objects));
    std::ranges::move(page.prefixes, std::back_inserter(all.prefixes));
    if (page.next.empty()) return all;
    if (page.next == token) break;
    token = std::move(page.next);
  }
  return fail(ErrorKind::kCorrupt, "the object store's list does not end", path_of(prefix));
}

}  // namespace slackwater::s3
