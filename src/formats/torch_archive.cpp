#include "formats/torch_archive.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "formats/torch_values.hpp"

namespace slackwater::formats {
namespace {

constexpr std::string_view kPickleRecord = "data.pkl";

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// "archive/" if the archive has "archive/data.pkl".
std::optional<std::string> find_prefix(const ZipReader& zip) {
  for (const ZipRecord& record : zip.records()) {
    const std::size_t slash = record.name.find('/');
    if (slash != std::string_view::npos && record.name.substr(slash + 1) == kPickleRecord)
      return std::string(record.name.substr(0, slash + 1));
  }
  return std::nullopt;
}

}  // namespace

TorchArchive::TorchArchive(ZipReader zip, std::string prefix, PickleGraph graph, std::string path)
    : zip_(std::move(zip)), prefix_(std::move(prefix)), graph_(std::move(graph)), path_(std::move(path)) {}

Result<TorchArchive> TorchArchive::open(std::span<const std::byte> bytes, const std::string& path) {
  SW_ASSIGN(ZipReader zip, ZipReader::open(bytes, path));
  const std::optional<std::string> prefix = find_prefix(zip);
  if (!prefix) {
    return fail(ErrorKind::kUnsupported, "the zip archive has no data.pkl, so torch.save did not write it", path);
  }
  if (zip.find(*prefix + "constants.pkl") != nullptr) {
    return fail(ErrorKind::kUnsupported,
                "this is a TorchScript archive; load it with torch.jit.load and torch.save its state_dict()", path);
  }
  for (const ZipRecord& record : zip.records()) {
    if (!record.packed) continue;
    return fail(ErrorKind::kUnsupported,
                fmt::format("the record '{}' is compressed or encrypted, which torch.save never does; unpack the "
                            "archive and store it again (zip -0)",
                            record.name),
                path);
  }
  if (const ZipRecord* order = zip.find(*prefix + "byteorder"); order != nullptr && as_text(order->bytes) != "little") {
    return fail(ErrorKind::kUnsupported, "the file was written on a big-endian machine; save it again on another",
                path);
  }
  SW_ASSIGN(PickleGraph graph, PickleGraph::read(as_text(zip.find(*prefix + std::string(kPickleRecord))->bytes), path));
  return TorchArchive(std::move(zip), *prefix, std::move(graph), path);
}

Result<std::optional<TreeNode>> TorchArchive::read(const std::string& name, const Selection& selected,
                                                   std::vector<Tensor>& tensors) const {
  const auto find_storage = [&](std::string_view key) -> std::optional<std::span<const std::byte>> {
    const ZipRecord* record = zip_.find(fmt::format("{}data/{}", prefix_, key));
    if (record == nullptr) return std::nullopt;
    return record->bytes;
  };
  return TorchValues(graph_, find_storage, selected, path_, tensors).read(name);
}

std::vector<ZipRecord> TorchArchive::data_records() const {
  std::vector<ZipRecord> found;
  const std::string data = prefix_ + "data/";
  for (const ZipRecord& record : zip_.records())
    if (record.name.starts_with(data)) found.push_back(record);
  return found;
}

}  // namespace slackwater::formats
