#include "tiers/tier_identity.hpp"

#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/json.hpp"
#include "base/result.hpp"
#include "os/durable.hpp"
#include "version/attempt.hpp"
#include "version/catalog.hpp"
#include "version/delete_notes.hpp"
#include "version/fields.hpp"

namespace slackwater {
namespace {

constexpr std::uint32_t kTierIdFormat = 1;

bool is_unusable(const Error& error) {
  return error.kind == ErrorKind::kCorrupt || error.kind == ErrorKind::kUnsupported;
}

// nullopt: there is none.
Result<std::optional<std::string>> read_id(const TierPlace& place, const std::string& name) {
  const std::string path = fmt::format("{}/{}", control_path(place.root), name);
  const auto text = read_listed(*place.fs, control_path(place.root), name, kMaxTierIdBytes);
  if (!text && text.error().kind == ErrorKind::kNotFound) return std::nullopt;
  if (!text) return fail(text.error());
  SW_ASSIGN(const Json json, open_sealed_json(*text, path));
  SW_TRY(check_format(json, kTierIdFormat, "id of a tier", path));
  SW_ASSIGN(std::string id, json_string(json, "id", path));
  return std::optional(std::move(id));
}

// As there is none, or only a damaged one.
Status write_id(const TierPlace& place, const std::string& name, Json json) {
  json["format"] = kTierIdFormat;
  const std::string text = seal_json(std::move(json));
  const std::string control = control_path(place.root);
  Status written = publish_exclusively(*place.fs, control, name, text, random_id());
  if (written || written.error().kind != ErrorKind::kAlreadyExists) return written;
  SW_TRY(place.fs->unlink(fmt::format("{}/{}", control, name)));
  return publish_exclusively(*place.fs, control, name, text, random_id());
}

}  // namespace

std::string known_tier_file(const std::string& root) {
  const std::string location = noted_location(root);
  return fmt::format("tier-{}.json", to_hex(digest64(std::as_bytes(std::span(location)))));
}

Result<std::optional<std::string>> remembers_another(const TierPlace& tier_0, const TierPlace& tier) {
  const std::string name = known_tier_file(tier.root);
  const auto known = read_id(tier_0, name);
  if (!known && !is_unusable(known.error())) return fail(known.error());
  if (!known || !*known) return std::nullopt;
  const auto id = read_id(tier, kTierIdFile);
  if (!id && !is_unusable(id.error())) return fail(id.error());
  // A damaged id is one: where nothing is mounted, there is none.
  if (!id || *id == *known) return std::nullopt;
  return std::optional(fmt::format("{}/{}", control_path(tier_0.root), name));
}

Status remember_tier(const TierPlace& tier_0, const TierPlace& tier) {
  const std::string name = known_tier_file(tier.root);
  const auto known = read_id(tier_0, name);
  if (!known && !is_unusable(known.error())) return fail(known.error());
  auto found = read_id(tier, kTierIdFile);
  if (!found && !is_unusable(found.error())) return fail(found.error());
  std::string id = found && *found ? **found : known && *known ? **known : random_id();
  if (!found || !*found) SW_TRY(write_id(tier, kTierIdFile, {{"id", id}}));
  // The tier first: what tier 0 remembers must be there.
  if (!known || !*known) SW_TRY(write_id(tier_0, name, {{"id", id}, {"tier", noted_location(tier.root)}}));
  return {};
}

}  // namespace slackwater
