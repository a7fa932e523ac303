// HeaderWriter: builds the JSON header of one safetensors file, tensor by tensor. Offsets count from the start of the
// data, so no size has to be known beforehand.
// Owner: plan_layout(). Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "layout/file_layout.hpp"
#include "slackwater/tensor.hpp"
#include "tensor/box.hpp"

namespace slackwater {

inline constexpr std::uint64_t kDataAlignment = 4096;  // the data of a file starts at a multiple of this

// Keys of __metadata__. safetensors wants strings as values. A file with kKeyFormat was written by Slackwater.
inline constexpr std::string_view kKeyFormat = "slackwater";
inline constexpr std::string_view kHeaderFormat = "1";
inline constexpr std::string_view kKeyStep = "step";
inline constexpr std::string_view kKeyAttempt = "attempt";
inline constexpr std::string_view kKeyRank = "rank";
inline constexpr std::string_view kKeyWorld = "world";
inline constexpr std::string_view kKeyTree = "tree";
inline constexpr std::string_view kKeyMetadata = "metadata";  // JSON text: the user's key -> value
inline constexpr std::string_view kKeyAliases = "aliases";    // JSON text: name -> name that it is stored under
inline constexpr std::string_view kKeyDtypes = "dtypes";      // JSON text: name -> dtype, for tensors stored as pairs
// JSON text, for boxes of global tensors: entry -> {"of": global tensor, "shape": its shape, "offset": start of the
// box}.
inline constexpr std::string_view kKeyShards = "shards";

// The name of a box in a file: "weight[0:512,0:1024]", or "weight" if the box is the whole tensor.
[[nodiscard]] std::string entry_name(std::string_view tensor, BoxView box, std::span<const std::int64_t> global_shape);

class HeaderWriter {
 public:
  explicit HeaderWriter(const FileIdentity& identity);

  // Expected size of the tensors' entries.
  void reserve(std::size_t tensor_bytes) { tensors_.reserve(tensor_bytes); }

  // At most once each, before the first tensor.
  void set_tree(std::string_view tree);
  void set_metadata(const std::map<std::string, std::string>& metadata);

  // `begin` and `end` count bytes from the start of the data.
  void add_tensor(std::string_view name, DType dtype, std::span<const std::int64_t> shape, std::uint64_t begin,
                  std::uint64_t end);
  void add_alias(std::string_view alias, std::string_view stored);
  // Says that `entry`, a tensor or an alias, is a box of a global tensor.
  void add_shard(std::string_view entry, std::string_view tensor, const Shard& shard);

  // Size of the JSON without padding. An upper bound of what finish() writes.
  [[nodiscard]] std::uint64_t json_bytes() const;

  // Remembers the current state, so that roll_back() can remove what was added since.
  struct Mark {
    std::size_t tensors, aliases, dtypes, shards;
  };
  [[nodiscard]] Mark mark() const { return {tensors_.size(), aliases_.size(), dtypes_.size(), shards_.size()}; }
  void roll_back(const Mark& mark);

  // Length word, JSON, and spaces up to a multiple of kDataAlignment. The writer cannot be used afterwards.
  [[nodiscard]] std::string finish();

 private:
  void append_pair(std::string& text, std::string_view key, std::string_view value);

  std::string fixed_;    // members of __metadata__, except for the next three
  std::string aliases_;  // content of the JSON text, escaped twice; each member is followed by a comma
  std::string dtypes_;   // same form
  std::string shards_;   // same form
  std::string tensors_;  // each member is preceded by a comma
  std::string scratch_;
};

}  // namespace slackwater
