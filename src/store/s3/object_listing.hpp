// ObjectListing: names and sizes of all objects below a root, from one list that is made at the first question and then
// remembered. A process can hand its list to another one that reads the same place, so that a restore by many ranks
// takes one list.
// Owner: ObjectFileSystem. Thread rule: thread-safe; the first question after forget() waits for the store.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "os/file_system.hpp"
#include "store/s3/object_client.hpp"

namespace slackwater::s3 {

class ObjectListing {
 public:
  ObjectListing(ObjectClient& client, std::string root_key) : client_(client), root_key_(std::move(root_key)) {}

  // Whether this key is the root, or below it, and what is there is listed.
  [[nodiscard]] bool covers(const std::string& key) const;
  // What is there under this name: an object, or a directory. nullopt: nothing.
  [[nodiscard]] Result<std::optional<FileStatus>> find(const std::string& key);
  // What is in the directory whose keys begin like this; in no order.
  [[nodiscard]] Result<std::vector<DirectoryEntry>> entries(const std::string& prefix);
  void forget();

  [[nodiscard]] Result<std::string> to_text();
  // A text that to_text() has not written is kCorrupt, and changes nothing.
  [[nodiscard]] Status learn(std::string_view text);

 private:
  using Sizes = std::map<std::string, std::uint64_t>;  // by key, of every object below the root
  [[nodiscard]] Result<std::shared_ptr<const Sizes>> sizes();

  ObjectClient& client_;
  const std::string root_key_;
  std::mutex listing_;  // held by whoever asks the store, so that one list serves all who ask; taken before mutex_
  std::mutex mutex_;    // guards what follows; never held while the store is asked
  std::shared_ptr<const Sizes> sizes_;  // null: to be made
  std::uint64_t changes_ = 0;           // forget() and learn() so far
};

// A bucket without a prefix may hold millions of objects of others. There, only names that begin like these are listed:
// all that version/names.hpp makes at the root of a tier.
inline constexpr std::array<std::string_view, 2> kOwnNames{".slackwater", "step-"};
// As ObjectClient::list(), except that of a bucket's root only those are listed.
[[nodiscard]] Result<ObjectPage> list_own(ObjectClient& client, const std::string& prefix, std::string_view delimiter);

// The first part of a key behind a prefix of this length: a file, or a directory if more follows.
[[nodiscard]] DirectoryEntry entry_behind(std::string_view key, std::size_t prefix);
[[nodiscard]] std::string directory_prefix(const std::string& key);  // with a slash at its end; empty: the bucket

}  // namespace slackwater::s3
