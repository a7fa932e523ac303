// Reads an untrusted safetensors header. Every length is checked before it is used. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "layout/file_layout.hpp"
#include "slackwater/error.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

struct ParsedHeader {
  FileIdentity identity;
  bool has_identity = false;  // false: a file not written by Slackwater
  // Stored tensors and aliases, with logical dtypes. `file` is 0, and offsets count from the start of the file. A box
  // of a global tensor has the global name and shape, and itself as its only box. So several tensors may have the same
  // name.
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;  // given by the user
  std::string tree;                             // empty if it is in kTreeTensorName (which is among `tensors`)
  std::uint64_t data_offset = 0;                // 8 + header length
};

// `length_word`: the first 8 bytes. kCorrupt unless 2 <= header <= min(kMaxHeaderBytes, file_size - 8).
[[nodiscard]] Result<std::uint64_t> header_bytes(std::string_view length_word, std::uint64_t file_size,
                                                 const std::string& path);

// `json` is the header without the length word. kCorrupt names the tensor. It stands for offsets outside the file,
// overlaps, holes, a size that does not match shape and dtype, overflow, duplicate keys, and a box that does not lie in
// its global tensor, has another name than entry_name() gives, or disagrees with another box. An unknown dtype is
// kUnsupported.
[[nodiscard]] Result<ParsedHeader> parse_header(std::string_view json, std::uint64_t file_size,
                                                const std::string& path);

}  // namespace slackwater
