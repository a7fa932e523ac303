#include "keeper/staged_version.hpp"

#include <cstring>

#include "base/result.hpp"
#include "base/units.hpp"

namespace slackwater {
namespace {

// Whole numbers of 8 bytes, and texts with their length in front. The reader runs on the same machine.
void put(std::string& text, std::uint64_t number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  text.append(bytes, sizeof number);
}

void put(std::string& text, std::string_view words) {
  put(text, words.size());
  text += words;
}

std::unexpected<Error> damaged() {
  return fail(ErrorKind::kCorrupt, "the keeper's memory does not hold what was written there");
}

class Reader {
 public:
  explicit Reader(std::string_view text) : left_(text) {}

  [[nodiscard]] Result<std::uint64_t> number(std::uint64_t at_most) {
    std::uint64_t value = 0;
    if (left_.size() < sizeof value) return damaged();
    std::memcpy(&value, left_.data(), sizeof value);
    left_.remove_prefix(sizeof value);
    if (value > at_most) return damaged();
    return value;
  }
  [[nodiscard]] Result<std::string> words() {
    SW_ASSIGN(const std::uint64_t size, number(left_.size()));
    if (size > left_.size()) return damaged();
    std::string text(left_.substr(0, size));
    left_.remove_prefix(size);
    return text;
  }
  [[nodiscard]] bool empty() const { return left_.empty(); }

 private:
  std::string_view left_;
};

}  // namespace

std::string serialize(const StagedVersion& version) {
  std::string text;
  put(text, version.name.step);
  put(text, version.name.attempt);
  put(text, version.rank);
  put(text, version.world);
  put(text, version.files.size());
  for (const StagedFile& file : version.files) {
    put(text, std::string_view(file.name));
    put(text, file.size_bytes);
    put(text, file.slabs.size());
    for (const std::uint32_t slab : file.slabs) put(text, slab);
  }
  put(text, std::string_view(version.record));
  put(text, std::string_view(version.index));
  put(text, std::string_view(version.manifest));
  put(text, std::string_view(version.vote));
  return text;
}

Result<StagedVersion> parse_staged_version(std::string_view text, std::uint64_t slab_bytes, std::uint32_t slab_count) {
  constexpr std::uint64_t kAny32 = UINT32_MAX;
  Reader reader(text);
  StagedVersion version;
  SW_ASSIGN(version.name.step, reader.number(UINT64_MAX));
  SW_ASSIGN(const std::uint64_t attempt, reader.number(kAny32));
  SW_ASSIGN(const std::uint64_t rank, reader.number(kAny32));
  SW_ASSIGN(const std::uint64_t world, reader.number(kAny32));
  version.name.attempt = static_cast<std::uint32_t>(attempt);
  version.rank = static_cast<std::uint32_t>(rank);
  version.world = static_cast<std::uint32_t>(world);
  SW_ASSIGN(const std::uint64_t files, reader.number(slab_count));  // none is empty: it has a header
  std::vector<bool> used(slab_count);
  for (std::uint64_t i = 0; i < files; ++i) {
    StagedFile file;
    SW_ASSIGN(file.name, reader.words());
    SW_ASSIGN(file.size_bytes, reader.number(slab_bytes * slab_count));
    SW_ASSIGN(const std::uint64_t slabs, reader.number(slab_count));
    if (!stays_in_version(file.name) || slabs != round_up(file.size_bytes, slab_bytes) / slab_bytes) return damaged();
    for (std::uint64_t s = 0; s < slabs; ++s) {
      SW_ASSIGN(const std::uint64_t slab, reader.number(slab_count - 1));
      if (used[slab]) return damaged();
      used[slab] = true;
      file.slabs.push_back(static_cast<std::uint32_t>(slab));
    }
    version.files.push_back(std::move(file));
  }
  SW_ASSIGN(version.record, reader.words());
  SW_ASSIGN(version.index, reader.words());
  SW_ASSIGN(version.manifest, reader.words());
  SW_ASSIGN(version.vote, reader.words());
  if (!reader.empty() || version.rank >= version.world) return damaged();
  return version;
}

}  // namespace slackwater
