// RanksWriter: writes committed versions of several ranks for tests of readers. It uses layout and version with plain
// file writes, and no engine or messages. A test may change what the ranks report before it is written, so it can also
// read versions that no engine makes.
// Anything that goes wrong is an exception, which fails the test. Not thread-safe.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/write_checkpoint.hpp"
#include "version/names.hpp"

namespace slackwater::test {

class RanksWriter {
 public:
  using Change = std::function<void(std::vector<IndexEntry>&)>;

  // Claims an attempt that adopts everything that counts in `root`.
  RanksWriter(std::string root, std::uint32_t world, RankFiles files = {}) : world_(world), files_(files) {
    store_ = must(VersionStore::open(*fs_, clock_, std::move(root), Log([](LogLevel, std::string_view) {}),
                                     VersionStore::Role::kLeader, files));
    std::vector<VersionName> adopted;
    for (const VersionInfo& version : must(store_->scan()).live_versions())
      adopted.push_back({version.step, version.attempt});
    std::vector<std::string> members;
    for (std::uint32_t rank = 0; rank < world; ++rank) members.push_back(std::to_string(rank) + std::string(31, 'f'));
    attempt_ = must(store_->attempt().claim("test", std::move(adopted), std::move(members)));
  }

  // Commits the states, one a rank; the path of their directory. `change` gets the index before it is written.
  std::string write(std::uint64_t step, const std::vector<State>& states, const Change& change = {},
                    std::vector<std::string> rank_local_values = {}) {
    const std::string directory = must(store_->make_version(step));
    Manifest manifest{.required_features = {kRankLocalFeature, kGlobalTensorsFeature},
                      .run = attempt_.run,
                      .step = step,
                      .attempt = attempt_.number,
                      .world = world_,
                      .decision = Decision::kCommit,
                      .rank_local_values = std::move(rank_local_values),
                      .created_unix_ms = clock_.wall_unix_ms()};
    std::vector<IndexEntry> entries;
    for (std::uint32_t rank = 0; rank < world_; ++rank) {
      const State& state = states.at(rank);
      must(check_state(state));
      const FileIdentity identity{.step = step, .attempt = attempt_.number, .rank = rank, .world = world_};
      const std::string own = files_.directory(rank);
      if (!own.empty()) std::filesystem::create_directory(directory + "/" + own);
      const SnapshotLayout layout = must(plan_layout(state, identity, kMaxHeaderBytes, own));
      Record record{.run = attempt_.run, .identity = identity, .files = {}};
      for (const FileLayout& part : layout.parts) {
        record.files.push_back(write_part(directory, part, state));
        for (const Extent& extent : part.extents())
          if (extent.tensor != kTreeSource) add(entries, rank, state.tensors[extent.tensor], part, extent);
      }
      for (const auto& [alias, stored] : layout.aliases)
        entry_of(entries, rank, state.tensors[alias]).alias_of = name_of(rank, state.tensors[stored]);
      for (const Tensor& tensor : state.tensors)
        if (tensor.shard) static_cast<void>(entry_of(entries, rank, tensor));
      manifest.records.push_back(must(store_->write_record(record, {})));
      manifest.size_bytes += layout.size_bytes;
    }
    if (change) change(entries);
    const std::string index_text = serialize_index(entries);
    must(store_->write_index({step, attempt_.number}, index_text));
    manifest.index_digest = digest128(index_text);
    manifest.tensor_count = entries.size();
    if (must(store_->decide(std::move(manifest))).decision != Decision::kCommit)
      throw std::runtime_error("the version was aborted");
    return directory;
  }

 private:
  [[nodiscard]] std::string name_of(std::uint32_t rank, const Tensor& tensor) const {
    return tensor.shard || world_ == 1 ? tensor.name : local_name(rank, tensor.name);
  }
  IndexEntry& entry_of(std::vector<IndexEntry>& entries, std::uint32_t rank, const Tensor& tensor) const {
    std::string name = name_of(rank, tensor);
    const auto known = std::ranges::find(entries, name, &IndexEntry::name);
    if (known != entries.end()) return *known;
    return entries.emplace_back(
        IndexEntry{std::move(name), tensor.dtype, tensor.shard ? tensor.shard->global_shape : tensor.shape, {}, {}});
  }
  void add(std::vector<IndexEntry>& entries, std::uint32_t rank, const Tensor& tensor, const FileLayout& part,
           const Extent& extent) const {
    entry_of(entries, rank, tensor)
        .shards.push_back({tensor.shard ? tensor.shard->offset : std::vector<std::int64_t>(tensor.shape.size()),
                           tensor.shape, part.file_name(), extent.offset, extent.size_bytes});
  }

  const std::uint32_t world_;
  const RankFiles files_;
  const std::unique_ptr<FileSystem> fs_ = make_posix_file_system();
  const SystemClock clock_;
  std::unique_ptr<VersionStore> store_;
  Attempt attempt_;
};

}  // namespace slackwater::test
