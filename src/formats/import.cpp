#include "formats/import.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "formats/crc32.hpp"
#include "slackwater/engine.hpp"
#include "tensor/shape.hpp"

namespace slackwater::formats {
namespace {

constexpr std::uint64_t kImportPoolBytes = 128u << 20;
constexpr std::uint64_t kCheckedAtOnce = 64u << 20;
constexpr std::chrono::milliseconds kProgressPause{100};
// Tensors may share bytes, so a checkpoint can be larger than the file. A file made to fill the disk is much larger.
constexpr std::uint64_t kMostGrowth = 16;
constexpr std::uint64_t kAlwaysAllowedBytes = 1u << 30;

Result<std::uint64_t> total_bytes(const ImportSource& source, const std::string& path) {
  std::uint64_t total = 0;
  for (const Tensor& tensor : source.tensors) {
    const auto bytes = packed_bytes(tensor.dtype, tensor.shape);
    if (!bytes || __builtin_add_overflow(total, *bytes, &total))
      return fail(ErrorKind::kCorrupt, fmt::format("tensor '{}' has an impossible size", tensor.name), path);
  }
  if (total > std::max(kAlwaysAllowedBytes, kMostGrowth * source.source_bytes)) {
    return fail(ErrorKind::kCorrupt,
                fmt::format("its tensors take {}, but the file has only {}: they repeat the same bytes",
                            format_bytes(total), format_bytes(source.source_bytes)),
                path);
  }
  return total;
}

Status check_records(const ImportSource& source, const ImportProgress& progress) {
  std::uint64_t total = 0;
  std::uint64_t done = 0;
  for (const RecordCheck& check : source.checks) total += check.bytes.size();
  for (const RecordCheck& check : source.checks) {
    std::uint32_t crc = 0;
    for (std::size_t at = 0; at < check.bytes.size(); at += kCheckedAtOnce) {
      const auto part = check.bytes.subspan(at, std::min<std::size_t>(kCheckedAtOnce, check.bytes.size() - at));
      crc = crc32(part, crc);
      done += part.size();
      if (progress) progress("checking", done, total);
    }
    if (crc == check.crc) continue;
    return fail(ErrorKind::kCorrupt,
                fmt::format("the record '{}' does not have its checksum: the file is damaged, or was written with "
                            "torch.serialization.set_crc32_options(False); --no-crc imports it as it is",
                            check.name),
                check.path);
  }
  return {};
}

}  // namespace

Result<Imported> import_checkpoint(const std::string& from, const std::string& directory, const ImportOptions& options,
                                   const ImportProgress& progress) {
  SW_ASSIGN(ImportSource source, read_source(from, options.source));
  SW_ASSIGN(const std::uint64_t size_bytes, total_bytes(source, from));
  if (options.check_crc) SW_TRY(check_records(source, progress));

  SW_ASSIGN(Engine engine, Engine::open({.path = directory,
                                         .pool_bytes = kImportPoolBytes,
                                         .keep = 0,
                                         .run_name = "slackwater import",
                                         .log = options.log}));
  const Imported imported{
      .format = source.format, .step = options.step, .tensors = source.tensors.size(), .size_bytes = size_bytes};
  State state;
  state.tensors = std::move(source.tensors);
  state.tree = tree_text(source.tree);
  state.metadata = std::move(source.metadata);
  SW_ASSIGN(std::optional<Snapshot> snapshot, engine.save(options.step, std::move(state)));
  // Waits in pieces, to show how far it is. Only the snapshot's own error ends it.
  while (snapshot) {
    const Status waited = snapshot->wait(Level::kCommitted, kProgressPause);
    const Progress now = snapshot->progress();
    if (progress && now.total_bytes > 0) progress("importing", now.written_bytes, now.total_bytes);
    if (waited) break;
    if (waited.error().kind != ErrorKind::kTimeout || now.failed) {
      const auto error = snapshot->error();
      return fail(error ? *error : waited.error());
    }
  }
  SW_TRY(engine.close());
  return imported;
}

}  // namespace slackwater::formats
