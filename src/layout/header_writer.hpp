// HeaderWriter: the JSON header of one safetensors file, built tensor by tensor. Offsets are relative to the data, so
// no size has to be known beforehand. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "layout/stream_layout.hpp"
#include "slackwater/tensor.hpp"
#include "tensor/box.hpp"

namespace slackwater {

inline constexpr std::uint64_t kDataAlignment = 4096;  // the data of a file starts at a multiple of it

// Keys of __metadata__, whose values are strings, as safetensors wants it. A file is ours if it has kKeyFormat.
inline constexpr std::string_view kKeyFormat = "slackwater";
inline constexpr std::string_view kHeaderFormat = "1";
inline constexpr std::string_view kKeyStep = "step";
inline constexpr std::string_view kKeyAttempt = "attempt";
inline constexpr std::string_view kKeyRank = "rank";
inline constexpr std::string_view kKeyWorld = "world";
inline constexpr std::string_view kKeyTree = "tree";
inline constexpr std::string_view kKeyMetadata = "metadata";  // JSON text: the user's key -> value
inline constexpr std::string_view kKeyAliases = "aliases";    // JSON text: name -> name it is stored under
inline constexpr std::string_view kKeyDtypes = "dtypes";      // JSON text: name -> dtype, for what is stored as pairs
// JSON text: entry -> {"of": global tensor, "shape": its shape, "offset": where the box begins}, for boxes of global tensors.
inline constexpr std::string_view kKeyShards = "shards";

// What the box of a global tensor is called in a file: "weight[0:512,0:1024]", or "weight" if it is the whole.
[[nodiscard]] std::string entry_name(std::string_view tensor, BoxView box, std::span<const std::int64_t> global_shape);

class HeaderWriter {
 public:
  explicit HeaderWriter(const StreamIdentity& identity);

  // About what the tensors' entries will take.
  void reserve(std::size_t tensor_bytes) { tensors_.reserve(tensor_bytes); }

  // At most once each, before the first tensor.
  void set_tree(std::string_view tree);
  void set_metadata(const std::map<std::string, std::string>& metadata);

  // `begin`, `end`: bytes from the start of the data.
  void add_tensor(std::string_view name, DType dtype, std::span<const std::int64_t> shape, std::uint64_t begin,
                  std::uint64_t end);
  void add_alias(std::string_view alias, std::string_view stored);
  // `entry`, a tensor or an alias, is a box of a global tensor.
  void add_shard(std::string_view entry, std::string_view tensor, const Shard& shard);

  // Of the JSON without padding; never less than what finish() writes.
  [[nodiscard]] std::uint64_t json_bytes() const;

  // To take back what was added since.
  struct Mark {
    std::size_t tensors, aliases, dtypes, shards;
  };
  [[nodiscard]] Mark mark() const { return {tensors_.size(), aliases_.size(), dtypes_.size(), shards_.size()}; }
  void roll_back(const Mark& mark);

  // Length word, JSON, and spaces up to a multiple of kDataAlignment. Ends the writer's use.
  [[nodiscard]] std::string finish();

 private:
  void append_pair(std::string& text, std::string_view key, std::string_view value);

  std::string fixed_;    // members of __metadata__ but for the next three
  std::string aliases_;  // the text's inside, escaped twice; each member followed by a comma
  std::string dtypes_;   // likewise
  std::string shards_;   // likewise
  std::string tensors_;  // each member preceded by a comma
  std::string scratch_;
};

}  // namespace slackwater
