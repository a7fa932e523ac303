#include "store/s3/object_listing.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/scan.hpp"

namespace slackwater::s3 {

DirectoryEntry entry_behind(std::string_view key, std::size_t prefix) {
  const std::string_view rest = key.substr(prefix);
  const std::size_t slash = rest.find('/');
  return {std::string(rest.substr(0, slash)),
          slash == std::string_view::npos ? FileType::kRegular : FileType::kDirectory};
}

std::string directory_prefix(const std::string& key) { return key.empty() ? key : key + "/"; }

Result<ObjectPage> list_own(ObjectClient& client, const std::string& prefix, std::string_view delimiter) {
  if (!prefix.empty()) return client.list(prefix, delimiter);
  ObjectPage all;
  for (const std::string_view names : kOwnNames) {
    SW_ASSIGN(ObjectPage page, client.list(std::string(names), delimiter));
    std::ranges::move(page.objects, std::back_inserter(all.objects));
    std::ranges::move(page.prefixes, std::back_inserter(all.prefixes));
  }
  return all;
}

bool ObjectListing::covers(const std::string& key) const {
  if (key == root_key_) return true;
  if (!root_key_.empty()) return key.starts_with(root_key_ + "/");
  return std::ranges::any_of(kOwnNames, [&](std::string_view names) { return key.starts_with(names); });
}

Result<std::shared_ptr<const ObjectListing::Sizes>> ObjectListing::sizes() {
  {
    const std::lock_guard lock(mutex_);
    if (sizes_) return sizes_;
  }
  const std::lock_guard one_at_a_time(listing_);
  std::uint64_t changes = 0;
  {
    const std::lock_guard lock(mutex_);
    if (sizes_) return sizes_;
    changes = changes_;
  }
  SW_ASSIGN(ObjectPage all, list_own(client_, directory_prefix(root_key_), {}));
  auto made = std::make_shared<Sizes>();
  for (ObjectInfo& object : all.objects) made->emplace(std::move(object.key), object.size_bytes);
  const std::lock_guard lock(mutex_);
  // Whoever has asked to forget what is known wants a list that began later.
  if (changes == changes_) sizes_ = made;
  return std::shared_ptr<const Sizes>(std::move(made));
}

void ObjectListing::forget() {
  const std::lock_guard lock(mutex_);
  sizes_.reset();
  ++changes_;
}

Result<std::optional<FileStatus>> ObjectListing::find(const std::string& key) {
  SW_ASSIGN(const auto known, sizes());
  if (const auto found = known->find(key); found != known->end())
    return FileStatus{FileType::kRegular, found->second, 1};
  const std::string prefix = directory_prefix(key);
  const auto below = known->lower_bound(prefix);
  if (below != known->end() && below->first.starts_with(prefix)) return FileStatus{FileType::kDirectory, 0, 1};
  return std::nullopt;
}

Result<std::vector<DirectoryEntry>> ObjectListing::entries(const std::string& prefix) {
  SW_ASSIGN(const auto known, sizes());
  std::vector<DirectoryEntry> entries;
  for (auto object = known->lower_bound(prefix); object != known->end() && object->first.starts_with(prefix);) {
    entries.push_back(entry_behind(object->first, prefix.size()));
    if (entries.back().type == FileType::kRegular) {
      ++object;
    } else {  // past everything in it: '0' follows '/'
      object = known->lower_bound(prefix + entries.back().name + '0');
    }
  }
  return entries;
}

// A line for each object: its size, a space, its encoded key.
Result<std::string> ObjectListing::to_text() {
  SW_ASSIGN(const auto known, sizes());
  std::string text;
  for (const auto& [key, size_bytes] : *known) text += fmt::format("{} {}\n", size_bytes, encode_key(key));
  return text;
}

Status ObjectListing::learn(std::string_view text) {
  auto learnt = std::make_shared<Sizes>();
  while (!text.empty()) {
    std::uint64_t size_bytes = 0;
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos || !take_number(text, size_bytes) || !take_prefix(text, " "))
      return fail(ErrorKind::kCorrupt, "a list of objects from another rank is malformed", client_.path_of(root_key_));
    const std::size_t stop = text.find('\n');
    learnt->emplace(decode_percent(std::string(text.substr(0, stop))), size_bytes);
    text.remove_prefix(stop + 1);
  }
  const std::lock_guard lock(mutex_);
  sizes_ = std::move(learnt);
  ++changes_;
  return {};
}

}  // namespace slackwater::s3
