#include "slackwater/checkpoint.hpp"

#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/result.hpp"
#include "device/device.hpp"
#include "restore/block_reader.hpp"
#include "restore/checkpoint_reader.hpp"
#include "restore/read_plan.hpp"
#include "restore/version_contents.hpp"
#include "store/s3/locations.hpp"
#include "version/catalog.hpp"

namespace slackwater {

struct Checkpoint::Impl {
  ReaderDependencies parts;
  std::unique_ptr<FileSystem> own_fs;  // empty if the opener lent one
  std::unique_ptr<Pool> own_pool;      // made at the first read if none was lent
  std::unique_ptr<Device> host = make_host_device();
  std::string root;
  VersionInfo version;
  ReadOptions options;
  VersionContents contents;

  [[nodiscard]] VersionName name() const { return {version.step, version.attempt}; }
  [[nodiscard]] Status ensure_pool() {
    if (parts.pool != nullptr) return {};
    SW_ASSIGN(own_pool, make_read_pool(options, contents.manifest.size_bytes));
    parts.pool = own_pool.get();
    return {};
  }
};

namespace {

// Registers a reader's own memory with CUDA for its lifetime, so that devices can read from it directly.
class PinnedWhile {
 public:
  PinnedWhile(Devices* devices, Pool* pool, const Log& log) {
    if (devices == nullptr || pool == nullptr || !devices->cuda_in_use()) return;
    if (const auto status = devices->pin(pool->memory(), pool->slab_bytes()); !status) {
      log.warn("cannot register the read memory with CUDA, so the restore is slow: {}", status.error().to_string());
      return;
    }
    devices_ = devices;
    memory_ = pool->memory();
  }
  ~PinnedWhile() {
    if (devices_ != nullptr) devices_->unpin(memory_);
  }
  PinnedWhile(const PinnedWhile&) = delete;
  PinnedWhile& operator=(const PinnedWhile&) = delete;

 private:
  Devices* devices_ = nullptr;
  std::span<std::byte> memory_;
};

// The devices that the targets lie on.
Result<std::map<int, Device*>> open_devices(const ReadPlan& plan, Device& host, Devices* devices) {
  std::map<int, Device*> result{{kHostDevice, &host}};
  for (const int ordinal : plan.devices()) {
    if (devices == nullptr) {
      return fail(ErrorKind::kUnsupported,
                  fmt::format("only a restore through the engine can place tensors on CUDA device {}; "
                              "read them into host memory instead",
                              ordinal));
    }
    SW_ASSIGN(result[ordinal], devices->cuda(ordinal));
  }
  return result;
}

Error describe_damage(const BadBlock& bad, const ReadPlan& plan) {
  Error error = bad.error;
  const std::vector<std::string> names = plan.names(bad.file, bad.offset, bad.size_bytes);
  error.message = fmt::format("{}, in the {} bytes from offset {} on, which hold tensor {}", error.message,
                              bad.size_bytes, bad.offset, join_names(names));
  return error;
}

// Loads the records of the files that will be read. An index says where boxes lie, but only a record says how long its
// file is, so the two are compared here.
Status load_records_of(const ReadPlan& plan, FileSystem& fs, const std::string& directory,
                       const OnProgress& on_progress, VersionContents& contents) {
  std::vector<std::uint32_t> files;
  for (const FileExtent& box : plan.stored())
    if (files.empty() || files.back() != box.file) files.push_back(box.file);
  SW_TRY(load_records(fs, directory, contents, files, on_progress));
  for (const FileExtent& box : plan.stored()) {
    const DataFile& file = contents.data[box.file];
    if (box.size_bytes <= file.size_bytes && box.offset <= file.size_bytes - box.size_bytes) continue;
    return fail(ErrorKind::kCorrupt,
                fmt::format("the index places tensor '{}' at bytes {} to {} of this file, but its record says {} bytes",
                            plan.name_of(box), box.offset, box.offset + box.size_bytes, file.size_bytes),
                file.path);
  }
  return {};
}

std::string steps_text(const std::vector<VersionInfo>& versions) {
  std::vector<std::string> steps;
  for (auto version = versions.rbegin(); version != versions.rend(); ++version)
    steps.push_back(fmt::format("{}", version->step));
  return join_names(steps, 10);
}

Result<VersionInfo> choose(const Catalog& catalog, const std::string& directory, std::optional<std::uint64_t> step) {
  const std::vector<VersionInfo> live = catalog.live_versions();
  if (!step) {
    if (live.empty())
      return fail(ErrorKind::kNotFound, "there is no committed checkpoint in this directory", directory);
    return live.back();
  }
  for (const VersionInfo& version : live)
    if (version.step == *step) return version;
  for (const CatalogEntry& entry : catalog.entries)
    if (entry.name.step == *step && entry.error) return fail(*entry.error);
  return fail(ErrorKind::kNotFound,
              live.empty() ? fmt::format("there is no checkpoint of step {}, nor of any other step", *step)
                           : fmt::format("there is no checkpoint of step {}; there are {}", *step, steps_text(live)),
              directory);
}

}  // namespace

Result<std::vector<VersionInfo>> list_versions(const std::string& directory, const S3Options& s3) {
  SW_ASSIGN(const std::unique_ptr<FileSystem> fs, make_file_system_at(directory, Access::kRead, s3));
  SW_ASSIGN(const Catalog catalog, scan_catalog(*fs, directory));
  return catalog.live_versions();
}

Result<Checkpoint> open_version(const ReaderDependencies& parts, const std::string& root, const VersionInfo& version,
                                const ReadOptions& options) {
  auto impl = std::make_unique<Checkpoint::Impl>();
  impl->parts = parts;
  impl->root = root;
  impl->options = options;
  impl->version = version;
  auto contents = load_version(*parts.fs, root, impl->name(), parts.viewer, parts.on_progress);
  if (!contents) return fail(damaged_or_removed(*parts.fs, root, impl->name(), std::move(contents).error()));
  impl->contents = std::move(*contents);
  if (!impl->contents.trouble.empty()) Log(options.log).warn("step {}: {}", version.step, impl->contents.trouble);
  return Checkpoint(std::move(impl));
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Result<Checkpoint> Checkpoint::open(const std::string& directory, std::optional<std::uint64_t> step,
                                    ReadOptions options) {
  SW_ASSIGN(std::unique_ptr<FileSystem> fs, make_file_system_at(directory, Access::kRead, options.s3));
  SW_ASSIGN(const Catalog catalog, scan_catalog(*fs, directory));
  SW_ASSIGN(const VersionInfo version, choose(catalog, directory, step));
  SW_ASSIGN(Checkpoint checkpoint, open_version({.fs = fs.get()}, directory, version, options));
  checkpoint.impl_->own_fs = std::move(fs);
  return checkpoint;
}

const VersionInfo& Checkpoint::version() const { return impl_->version; }
std::span<const TensorInfo> Checkpoint::tensors() const { return impl_->contents.tensors; }
const TensorInfo* Checkpoint::find(std::string_view name) const { return find_tensor(impl_->contents.tensors, name); }
std::span<const FileInfoOnTier> Checkpoint::files() const { return impl_->contents.files; }
const std::string& Checkpoint::tree() const { return impl_->contents.tree; }
const std::map<std::string, std::string>& Checkpoint::metadata() const { return impl_->contents.metadata; }
std::span<const std::string> Checkpoint::rank_local_values() const {
  return impl_->contents.manifest.rank_local_values;
}

Status Checkpoint::read(std::span<const Target> targets) {
  const ReaderDependencies& parts = impl_->parts;
  const std::string& root = impl_->root;
  VersionContents& contents = impl_->contents;
  const std::string directory = root + "/" + version_directory(impl_->name());
  const auto damaged = [&](Error error) {
    if (error.kind == ErrorKind::kCorrupt && error.path.empty()) error.path = directory;
    return fail(damaged_or_removed(*parts.fs, root, impl_->name(), std::move(error)));
  };

  // Everything that can be refused is refused before a byte moves: the caller's tensors stay as they are.
  auto made = ReadPlan::make(contents.tensors, targets);
  if (!made && made.error().kind == ErrorKind::kCorrupt) return damaged(std::move(made).error());
  if (!made) {
    Error error = std::move(made).error();
    if (error.kind == ErrorKind::kMismatch && contents.left_out)
      error.message += fmt::format(
          "; it was saved by {}, and tensors that only one rank had can be restored only on the "
          "same number of ranks",
          impl_->version.world == 1 ? "1 rank" : fmt::format("{} ranks", impl_->version.world));
    return fail(std::move(error));
  }
  const ReadPlan& plan = *made;
  if (plan.stored().empty()) return {};
  SW_ASSIGN(const auto devices, open_devices(plan, *impl_->host, parts.devices));
  if (auto loaded = load_records_of(plan, *parts.fs, directory, parts.on_progress, contents); !loaded)
    return damaged(std::move(loaded).error());
  SW_TRY(impl_->ensure_pool());
  const PinnedWhile pinned(devices.size() > 1 ? parts.devices : nullptr, impl_->own_pool.get(),
                           Log(impl_->options.log));

  std::vector<ReadFile> files;
  for (const DataFile& file : contents.data) files.push_back({file.path, file.size_bytes, file.block_digests});
  BlockReader reader(*parts.fs, *parts.pool, block_reader_options(impl_->options), Log(impl_->options.log));
  const std::vector<ReadUnit> units = plan.units(files, reader.unit_bytes());

  const auto place = [&](const ReadUnit& unit, std::span<const std::byte> bytes) -> Status {
    const ReadPlan::Pieces pieces = plan.pieces(unit, bytes);
    for (const auto& [device, list] : pieces.on) SW_TRY(devices.at(device)->copy_from_host(list));
    return {};
  };
  std::optional<Error> damage;
  const auto keep_first = [&](const BadBlock& bad) {
    if (!damage) {
      damage = describe_damage(bad, plan);
      if (bad.error.kind == ErrorKind::kNotFound) damage = missing_or_unreadable(*parts.fs, std::move(*damage));
    }
    return false;
  };
  const auto on_progress = [&](std::uint64_t) {
    if (parts.on_progress) parts.on_progress();
  };
  const Status status = reader.run(files, units, place, keep_first, on_progress);
  if (damage) return damaged(std::move(*damage));
  return status;
}

Result<VerifyReport> Checkpoint::verify(const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  SW_TRY(impl_->ensure_pool());
  return verify_version({.fs = impl_->parts.fs, .pool = impl_->parts.pool}, impl_->root, impl_->name(), impl_->options,
                        progress);
}

}  // namespace slackwater
