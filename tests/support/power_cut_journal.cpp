#include "support/power_cut_journal.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>

#include "base/digest.hpp"
#include "support/file_bytes.hpp"

namespace slackwater::test {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kSectorBytes = 512;

// Answers to the question what became of unsynced bytes.
enum BytesAnswer : std::uint32_t { kLost, kKept, kTornPages, kTornSectors, kStale, kBytesAnswers };

std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }
std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

void place(std::vector<std::byte>& contents, std::uint64_t offset, std::span<const std::byte> bytes) {
  if (contents.size() < offset + bytes.size()) contents.resize(offset + bytes.size());
  std::ranges::copy(bytes, contents.begin() + static_cast<std::ptrdiff_t>(offset));
}

// The sectors of a write that arrived before the power went.
void place_some(std::vector<std::byte>& contents, std::uint64_t offset, std::span<const std::byte> bytes,
                std::uint64_t sector_bytes, std::mt19937_64& random) {
  for (std::uint64_t at = 0; at < bytes.size(); at += sector_bytes) {
    if (random() % 2 == 0) continue;
    place(contents, offset + at, bytes.subspan(at, std::min<std::uint64_t>(sector_bytes, bytes.size() - at)));
  }
}

}  // namespace

void PowerCutJournal::adopt_existing() {
  std::vector<std::string> directories{root_};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root_)) {
    if (entry.is_directory()) {
      directories.push_back(entry.path());
      add_directory(entry.path());
      continue;
    }
    const Inode file = add_file(entry.path());
    written(write(file, 0, read_file(entry.path())));
    sync_bytes(file);
  }
  for (const std::string& directory : directories) sync_names(directory);
}

Inode PowerCutJournal::lookup(const std::string& path) const {
  const auto found = paths_.find(path);
  return found == paths_.end() ? kNoInode : found->second;
}

Inode PowerCutJournal::find(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  return lookup(path);
}

void PowerCutJournal::set_name(const std::string& path, Inode target) {
  const Inode directory = lookup(parent_of(path));
  if (directory == kNoInode) return;
  const std::string name = name_of(path);
  operations_.push_back({.change = DiskChange::kName, .inode = directory, .name = name, .target = target});
  last_names_[directory] = name;
  if (target == kNoInode)
    paths_.erase(path);
  else
    paths_[path] = target;
}

Inode PowerCutJournal::add(const std::string& path, bool directory) {
  const std::lock_guard lock(mutex_);
  if (lookup(parent_of(path)) == kNoInode) return kNoInode;
  const Inode inode = ++last_inode_;
  if (directory) directories_.insert(inode);
  set_name(path, inode);
  return inode;
}

void PowerCutJournal::link(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  set_name(to, lookup(from));
}

void PowerCutJournal::remove_name(const std::string& path) {
  const std::lock_guard lock(mutex_);
  set_name(path, kNoInode);
}

void PowerCutJournal::sync_names(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (const Inode directory = lookup(path); directory != kNoInode)
    operations_.push_back({.change = DiskChange::kSyncNames, .inode = directory});
}

std::size_t PowerCutJournal::write(Inode file, std::uint64_t offset, std::span<const std::byte> bytes) {
  auto copy = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
  const std::lock_guard lock(mutex_);
  operations_.push_back({.change = DiskChange::kWrite, .inode = file, .offset = offset, .bytes = std::move(copy)});
  return operations_.size() - 1;
}

void PowerCutJournal::written(std::size_t write) {
  const std::lock_guard lock(mutex_);
  operations_.push_back({.change = DiskChange::kWritten, .inode = operations_.at(write).inode, .offset = write});
}

void PowerCutJournal::allocate(Inode file, std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  operations_.push_back({.change = DiskChange::kAllocate, .inode = file, .offset = size_bytes});
}

void PowerCutJournal::truncate(Inode file, std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  operations_.push_back({.change = DiskChange::kTruncate, .inode = file, .offset = size_bytes});
}

void PowerCutJournal::sync_bytes(Inode file) {
  const std::lock_guard lock(mutex_);
  operations_.push_back({.change = DiskChange::kSyncBytes, .inode = file});
}

std::string PowerCutJournal::last_name(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const auto found = last_names_.find(lookup(path));
  return found == last_names_.end() ? std::string() : found->second;
}

std::size_t PowerCutJournal::size() const {
  const std::lock_guard lock(mutex_);
  return operations_.size();
}

DiskOperation PowerCutJournal::operation(std::size_t number) const {
  const std::lock_guard lock(mutex_);
  return operations_.at(number);
}

bool PowerCutJournal::is_directory(Inode inode) const {
  const std::lock_guard lock(mutex_);
  return directories_.contains(inode);
}

void DiskImage::write_to(const std::string& root) const {
  for (const std::string& directory : directories) std::filesystem::create_directory(root + "/" + directory);
  for (const auto& [path, bytes] : files) {
    std::ofstream file(root + "/" + path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes->data()), static_cast<std::streamsize>(bytes->size()));
    file.close();
    if (!file) throw std::runtime_error("cannot write " + root + "/" + path);
  }
}

std::uint64_t DiskImage::digest() const {
  std::string text;
  for (const std::string& directory : directories) text += directory + "\n";
  for (const auto& [path, bytes] : files)
    text += path + "=" + std::to_string(bytes->size()) + ":" + std::to_string(digest64(*bytes)) + "\n";
  return digest64(std::as_bytes(std::span(text)));
}

void CutDisk::advance() {
  const std::size_t number = operations_++;
  const DiskOperation operation = journal_.operation(number);
  switch (operation.change) {
    case DiskChange::kName: entries_[{operation.inode, operation.name}].pending.push_back(operation.target); break;
    case DiskChange::kSyncNames:
      for (auto entry = entries_.lower_bound({operation.inode, {}});
           entry != entries_.end() && entry->first.first == operation.inode; ++entry) {
        if (entry->second.pending.empty()) continue;
        entry->second.durable = entry->second.pending.back();
        entry->second.pending.clear();
      }
      break;
    case DiskChange::kWrite: files_[operation.inode].pending.push_back({number, false}); break;
    case DiskChange::kWritten:
      for (PendingBytes& pending : files_[operation.inode].pending)
        if (pending.operation == operation.offset) pending.completed = true;
      break;
    case DiskChange::kAllocate:
    case DiskChange::kTruncate: files_[operation.inode].pending.push_back({number, true}); break;
    case DiskChange::kSyncBytes: sync_bytes(files_[operation.inode]); break;
  }
}

void CutDisk::sync_bytes(FileState& file) const {
  std::vector<std::byte> contents = *file.durable;
  std::vector<PendingBytes> left;
  for (const PendingBytes& pending : file.pending) {
    if (!pending.completed) {
      left.push_back(pending);
      continue;
    }
    const DiskOperation operation = journal_.operation(pending.operation);
    if (operation.change == DiskChange::kWrite)
      place(contents, operation.offset, *operation.bytes);
    else if (operation.change == DiskChange::kTruncate || contents.size() < operation.offset)
      contents.resize(operation.offset);
  }
  file.durable = std::make_shared<const std::vector<std::byte>>(std::move(contents));
  file.pending = std::move(left);
}

// Every length the file had since it was last synced.
std::vector<std::uint64_t> CutDisk::lengths(const FileState& file) const {
  std::vector<std::uint64_t> lengths{file.durable->size()};
  for (const PendingBytes& pending : file.pending) {
    const DiskOperation operation = journal_.operation(pending.operation);
    std::uint64_t length = lengths.back();
    if (operation.change == DiskChange::kTruncate)
      length = operation.offset;
    else if (operation.change == DiskChange::kAllocate)
      length = std::max(length, operation.offset);
    else
      length = std::max<std::uint64_t>(length, operation.offset + operation.bytes->size());
    if (length != lengths.back()) lengths.push_back(length);
  }
  return lengths;
}

SharedBytes CutDisk::contents(const FileState& file, std::uint64_t length, std::uint32_t bytes_answer,
                              std::uint64_t seed) const {
  if (file.pending.empty()) return file.durable;
  std::mt19937_64 random(seed);
  std::vector<std::byte> contents = *file.durable;
  if (bytes_answer == kStale) {
    // Space that was set aside or written and never synced may show what an earlier file left there.
    const std::uint64_t begin = contents.size();
    contents.resize(std::max<std::uint64_t>(begin, length));
    std::ranges::generate(contents.begin() + static_cast<std::ptrdiff_t>(begin), contents.end(),
                          [&] { return static_cast<std::byte>(random()); });
  }
  for (const PendingBytes& pending : file.pending) {
    const DiskOperation operation = journal_.operation(pending.operation);
    if (operation.change != DiskChange::kWrite) continue;
    if (bytes_answer == kKept) place(contents, operation.offset, *operation.bytes);
    if (bytes_answer == kTornPages) place_some(contents, operation.offset, *operation.bytes, kPageBytes, random);
    if (bytes_answer == kTornSectors) place_some(contents, operation.offset, *operation.bytes, kSectorBytes, random);
  }
  contents.resize(length);
  return std::make_shared<const std::vector<std::byte>>(std::move(contents));
}

std::vector<CutDisk::Asked> CutDisk::ask() const {
  std::vector<Asked> asked;
  std::set<Inode> reachable;
  for (const auto& [where, entry] : entries_) {
    reachable.insert(entry.durable);
    reachable.insert(entry.pending.begin(), entry.pending.end());
    if (!entry.pending.empty())
      asked.push_back(
          {Question::kName, where.first, where.second, static_cast<std::uint32_t>(entry.pending.size() + 1)});
  }
  for (const auto& [inode, file] : files_) {
    if (file.pending.empty() || !reachable.contains(inode)) continue;
    const std::size_t count = lengths(file).size();
    if (count > 1) asked.push_back({Question::kLength, inode, {}, static_cast<std::uint32_t>(count)});
    const bool wrote = std::ranges::any_of(file.pending, [&](const PendingBytes& pending) {
      return journal_.operation(pending.operation).change == DiskChange::kWrite;
    });
    if (wrote) asked.push_back({Question::kBytes, inode, {}, kBytesAnswers});
  }
  return asked;
}

std::vector<std::uint32_t> CutDisk::questions() const {
  std::vector<std::uint32_t> counts;
  for (const Asked& asked : ask()) counts.push_back(asked.answers);
  return counts;
}

DiskImage CutDisk::image(std::span<const std::uint32_t> answers, std::uint64_t seed) const {
  std::map<std::pair<Inode, std::string>, std::uint32_t> names;
  std::map<Inode, std::uint32_t> length_answers;
  std::map<Inode, std::uint32_t> bytes_answers;
  const std::vector<Asked> asked = ask();
  for (std::size_t i = 0; i < asked.size(); ++i) {
    switch (asked[i].question) {
      case Question::kName: names[{asked[i].inode, asked[i].name}] = answers[i]; break;
      case Question::kLength: length_answers[asked[i].inode] = answers[i]; break;
      case Question::kBytes: bytes_answers[asked[i].inode] = answers[i]; break;
    }
  }

  DiskImage image;
  const auto visit = [&](const auto& self, Inode directory, const std::string& prefix) -> void {
    for (auto entry = entries_.lower_bound({directory, {}}); entry != entries_.end() && entry->first.first == directory;
         ++entry) {
      const auto answer = names.find(entry->first);
      const bool kept = answer != names.end() && answer->second > 0;
      const Inode target = kept ? entry->second.pending[answer->second - 1] : entry->second.durable;
      if (target == kNoInode) continue;
      const std::string path = prefix + entry->first.second;
      if (journal_.is_directory(target)) {
        image.directories.insert(path);
        self(self, target, path + "/");
        continue;
      }
      const auto found = files_.find(target);
      const FileState& file = found == files_.end() ? FileState{} : found->second;
      const auto length = length_answers.find(target);
      const auto bytes = bytes_answers.find(target);
      image.files[path] = contents(file, lengths(file)[length == length_answers.end() ? 0 : length->second],
                                   bytes == bytes_answers.end() ? std::uint32_t{kLost} : bytes->second, seed + target);
    }
  };
  visit(visit, kRootInode, "");
  return image;
}

std::uint32_t CutDisk::corner(const Asked& asked, bool keep_names, bool keep_bytes) {
  if (asked.question == Question::kBytes) return keep_bytes ? kKept : kLost;
  return keep_names ? asked.answers - 1 : 0;
}

std::vector<DiskImage> CutDisk::images(std::size_t exhaustive, std::size_t samples, std::mt19937_64& random) const {
  const std::vector<Asked> asked = ask();
  std::vector<DiskImage> images;
  std::set<std::uint64_t> seen;
  const auto take = [&](const std::vector<std::uint32_t>& answers) {
    DiskImage image = this->image(answers, random());
    if (seen.insert(image.digest()).second) images.push_back(std::move(image));
  };

  std::size_t combinations = 1;
  for (const Asked& one : asked) combinations = std::min(combinations * one.answers, exhaustive + 1);
  std::vector<std::uint32_t> answers(asked.size());
  if (combinations <= exhaustive) {
    for (std::size_t number = 0; number < combinations; ++number) {
      std::size_t rest = number;
      for (std::size_t i = 0; i < asked.size(); ++i) {
        answers[i] = static_cast<std::uint32_t>(rest % asked[i].answers);
        rest /= asked[i].answers;
      }
      take(answers);
    }
    return images;
  }
  for (const auto& [keep_names, keep_bytes] : {std::pair{false, false}, {true, true}, {true, false}, {false, true}}) {
    std::ranges::transform(asked, answers.begin(),
                           [&](const Asked& one) { return corner(one, keep_names, keep_bytes); });
    take(answers);
  }
  for (std::size_t sample = 0; sample < samples; ++sample) {
    // A third of the samples each: mostly lost, mostly kept, evenly mixed. One thing gone wrong is what finds bugs.
    const std::uint64_t bias = random() % 3;
    std::ranges::transform(asked, answers.begin(), [&](const Asked& one) {
      if (bias < 2 && random() % 8 != 0) return corner(one, bias == 1, bias == 1);
      return static_cast<std::uint32_t>(random() % one.answers);
    });
    take(answers);
  }
  return images;
}

}  // namespace slackwater::test
