// Reading a safetensors header that nobody vouches for. Pure; bounded: every length is checked before it is used.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "layout/stream_layout.hpp"
#include "slackwater/error.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

struct ParsedHeader {
  StreamIdentity identity;
  bool has_identity = false;  // false: a file not written by Slackwater
  // Stored and aliases, logical dtypes; `file` is 0, offset from the start of the file. A box of a global tensor has the
  // name and shape of that, and itself as the only one of its boxes; there may be several of one name.
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;  // the user's
  std::string tree;                             // empty if it is in kTreeTensorName (which is among `tensors`)
  std::uint64_t data_offset = 0;                // 8 + header length
};

// `length_word`: the first 8 bytes. kCorrupt unless 2 <= header <= min(kMaxHeaderBytes, file_size - 8).
[[nodiscard]] Result<std::uint64_t> header_bytes(std::string_view length_word, std::uint64_t file_size,
                                                 const std::string& path);

// `json`: the header without the length word. kCorrupt names the tensor: offsets outside the file, overlaps, holes, a
// size that is not shape x dtype, overflow, unknown dtype (kUnsupported), duplicate keys, depth; a
// box that does not lie in its global tensor, is not called as entry_name() does, or disagrees with another about it.
[[nodiscard]] Result<ParsedHeader> parse_header(std::string_view json, std::uint64_t file_size,
                                                const std::string& path);

}  // namespace slackwater
