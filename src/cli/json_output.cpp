#include "cli/json_output.hpp"

#include "cli/text.hpp"

namespace slackwater::cli {

std::string_view state_name(VersionState state) {
  switch (state) {
    case VersionState::kLive: return "live";
    case VersionState::kReplaced: return "replaced";
    case VersionState::kSetAside: return "set aside";
    case VersionState::kAborted: return "aborted";
    case VersionState::kUndecided: return "undecided";
    case VersionState::kUnreadable: return "unreadable";
  }
  return "unknown";
}

OrderedJson version_json(const VersionInfo& version) {
  return {{"step", version.step},
          {"attempt", version.attempt},
          {"directory", version.directory},
          {"world", version.world},
          {"size_bytes", version.size_bytes},
          {"tensor_count", version.tensor_count},
          {"created_unix_ms", version.created_unix_ms},
          {"created", utc_time(version.created_unix_ms)},
          {"pinned", version.pinned}};
}

OrderedJson version_json(const CatalogEntry& entry) {
  OrderedJson json = version_json(entry.info);
  json["state"] = std::string(state_name(entry.state));
  return json;
}

OrderedJson tensor_json(const TensorInfo& tensor, const Checkpoint& checkpoint) {
  OrderedJson json{{"name", tensor.name},   {"dtype", std::string(dtype_name(tensor.dtype))},
                   {"shape", tensor.shape}, {"size_bytes", tensor.size_bytes},
                   {"file", nullptr},       {"offset", nullptr}};
  const auto files = checkpoint.files();
  if (tensor.boxes.empty() && tensor.file < files.size()) {  // a global tensor without elements may be in no file
    json["file"] = files[tensor.file].name;
    json["offset"] = tensor.offset;
  }
  for (const StoredBox& box : tensor.boxes) {
    json["boxes"].push_back({{"offset", box.offset},
                             {"shape", box.shape},
                             {"rank", files[box.file].rank},
                             {"file", files[box.file].name},
                             {"file_offset", box.file_offset},
                             {"size_bytes", box.size_bytes}});
  }
  if (!tensor.alias_of.empty()) json["alias_of"] = tensor.alias_of;
  return json;
}

OrderedJson damage_json(const Damage& damage) {
  return {{"file", damage.file},
          {"offset", damage.offset},
          {"size_bytes", damage.size_bytes},
          {"tensors", damage.tensors},
          {"what", damage.what}};
}

std::string dump(const OrderedJson& json) { return json.dump(-1, ' ', true, OrderedJson::error_handler_t::replace); }

}  // namespace slackwater::cli
