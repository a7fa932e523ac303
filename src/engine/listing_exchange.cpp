#include "engine/listing_exchange.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.hpp"
#include "ranks/poll.hpp"
#include "store/s3/locations.hpp"

namespace slackwater {
namespace {

constexpr const char* kListsChannel = "object-lists";
constexpr unsigned kPollsPerHint = 8;
constexpr int kListsQuarters = 5;  // of commit_timeout

// {"tiers": [{"root": "s3://b/run", "size": 123}, ...]}, and the texts one after the other. No size: rank 0 could not
// list this one.
Message list_stores(const std::vector<TierPlace>& tiers) {
  Message message(Json{{"tiers", Json::array()}});
  for (const TierPlace& tier : tiers) {
    Json entry{{"root", tier.root}};
    if (const auto names = tier.fs->remembered_names()) {
      entry["size"] = names->size();
      message.attachment += *names;
    }
    message.body["tiers"].push_back(std::move(entry));
  }
  return message;
}

Status learn_lists(const std::vector<TierPlace>& tiers, const Message& message) {
  SW_ASSIGN(const Json* const entries, json_array(message.body, "tiers", kListsChannel));
  std::string_view left = message.attachment;
  for (const Json& entry : *entries) {
    if (!entry.contains("size")) continue;
    SW_ASSIGN(const std::string root, json_string(entry, "root", kListsChannel));
    SW_ASSIGN(const std::uint64_t size, json_u64(entry, "size", kListsChannel));
    if (size > left.size()) return fail(ErrorKind::kCorrupt, "the list of objects from rank 0 is cut short", root);
    const auto tier = std::ranges::find(tiers, root, &TierPlace::root);
    if (tier != tiers.end()) SW_TRY(tier->fs->learn_names(left.substr(0, size)));
    left.remove_prefix(size);
  }
  return {};
}

// False: it did not come in time.
Result<bool> await_lists(EngineShared& shared, const std::vector<TierPlace>& tiers, std::uint64_t call) {
  Status learnt;
  const auto take = [&](std::uint32_t, const Message& message) {
    learnt = learn_lists(tiers, message);
    return true;
  };
  Poll poll(*shared.clock, shared.protocol->deadline({}, kListsQuarters));
  std::uint64_t number = call;
  for (unsigned polls = 1;; ++polls) {
    SW_ASSIGN(const bool arrived, shared.protocol->poll_once({kListsChannel, 1, number}, {0}, {}, take));
    if (arrived && !learnt) return fail(std::move(learnt).error());
    if (arrived) return true;
    // Rank 0 may have called restore() more or less often than this rank. What it sent last is what there is: if that
    // is old, the ranks do not see the same versions, and list again.
    if (polls % kPollsPerHint == 0) {
      const auto latest = shared.transport->latest({kListsChannel, 1, 0}, {0});
      number = latest.contains(0) ? latest.at(0) : call;
    }
    SW_ASSIGN(const bool again, poll.again());
    if (!again) return false;
  }
}

}  // namespace

void share_listings(EngineShared& shared, const std::vector<TierPlace>& tiers, std::uint64_t call) {
  std::vector<TierPlace> stores = tiers;
  std::erase_if(stores, [](const TierPlace& tier) { return !is_object_location(tier.root); });
  if (shared.options.rank == 0) {  // even if it reaches none: the others wait for it
    const Topic own{kListsChannel, 1, call};
    const Status sent = shared.transport->publish(own, 0, list_stores(stores));
    if (!sent) shared.log.warn("the other ranks list the object store themselves: {}", sent.error().to_string());
    shared.transport->forget_before(own);
    return;
  }
  if (stores.empty()) return;
  const auto learnt = await_lists(shared, stores, call);
  if (!learnt)
    shared.log.warn("rank 0's list of the object store cannot be used: {}", learnt.error().to_string());
  else if (!*learnt)
    shared.log.warn("rank 0 sent no list of the object store in time; this rank lists it itself");
}

}  // namespace slackwater
