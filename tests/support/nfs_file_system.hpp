// NfsFileSystem: one host that has mounted a directory over NFS, for tests. Several of them over one real directory
// (the server) are several hosts. Each has its own caches, as stale as nfs(5) and the Linux client permit:
//
//   NfsFileSystem here(*real, clock), there(*real, clock);
//   here.status("run/manifest.json");        // kNotFound, and remembered
//   there.link("run/.tmp", "run/manifest.json");
//   here.open("run/manifest.json", ...);     // kNotFound, for 60 s of `clock`
//   here.list("run");                        // asks the server; from here on it can be opened
//
// The rules, each with where it comes from ("dir.c" is fs/nfs/dir.c of Linux):
//  1. A name that was looked up is remembered, found or missing, until the attributes of its directory expire or are
//     seen to have changed. So is every component of a path. Even unlink() and rmdir() do not ask for a name that is
//     remembered as missing. [nfs(5), "Directory entry caching", lookupcache=all, the default;
//     nfs_neg_need_reval() in dir.c]
//  2. Attributes are kept for 30 to 60 s (a directory's) or 3 to 60 s (a file's). Here it is always 60 s, the worst
//     case. [nfs(5), acdirmin, acdirmax, acregmin, acregmax]
//  3. Opening a file or a directory asks the server, whatever is cached, unless the name is remembered as missing. So
//     list() and sync_directory() are fresh. After them all names in that directory are fresh too: if its change
//     attribute differs, each is looked up anew. [nfs(5), "Close-to-open cache consistency"; nfs_lookup_verify_inode()
//     with LOOKUP_OPEN, nfs_check_verifier() in dir.c]
//  4. Type, size and link count in status() may be as old as the attributes. Those in File::status() may be as old as
//     the open. [nfs(5), "Attribute caching"]
//  5. Creating (O_EXCL, mkdir, link) asks the server. If it fails, nothing is remembered about the name.
//     [nfs_neg_need_reval() with LOOKUP_CREATE, d_drop() in nfs_create(), nfs_mkdir() and nfs_link() in dir.c]
//  6. A host sees its own changes at once. It does not see the changes of others because of them. (Real hosts may, and
//     then they see more.)
//  7. status() of a name that another host removed succeeds until the attributes expire. open() fails with ENOENT: the
//     server answers ESTALE, and the kernel walks the path again. [nfs_lookup_revalidate() in dir.c, retry_estale()]
//  8. Reading an open file that another host removed fails with ESTALE. A file that this host itself removes while it
//     has it open is called .nfs<number> until it is closed. [nfs_sillyrename() in fs/nfs/unlink.c]
//  9. What write_at() wrote without O_DIRECT reaches the server at sync or close. [nfs(5), "The sync mount option"]
// 10. The reply to a link() can be lost. The link is there, and the call that is sent again answers EEXIST.
//     lose_link_reply() brings that about. [link(2), BUGS]
//
// Not modelled: delegations; servers whose change attribute is a clock with coarse ticks (two changes within one tick
// look like one, so even a listing can be old); stale pages of a file that is open while another host writes it.
// A change attribute here is a digest of the names and inodes in the directory, so hosts may be processes of their own.
// Queued reads and writes are passed on. Thread-safe, as FileSystem must be. Lifetime: what is given outlives it.
#pragma once

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "os/clock.hpp"
#include "os/file_system.hpp"
#include "os/posix_file.hpp"

namespace slackwater::test {

inline constexpr std::chrono::seconds kNfsAttributesKept{60};  // acdirmax, acregmax

// What one host remembers. Every function with a path asks the server only where a real host would.
class NfsHost {
 public:
  explicit NfsHost(const Clock& clock) : clock_(clock) {}

  // Whether a path leads to something, as this host believes it.
  [[nodiscard]] bool leads_to(const std::string& path) {
    const std::lock_guard lock(mutex_);
    return walk(path);
  }
  [[nodiscard]] bool leads_to_parent_of(const std::string& path) {
    const std::lock_guard lock(mutex_);
    const std::string parent = parent_of(path);
    if (!walk(parent)) return false;
    revalidate_if_old(parent);
    return true;
  }

  void learn_there(const std::string& path) {
    const std::lock_guard lock(mutex_);
    learn(path);
  }
  // The server said ENOENT: the first component that is missing is remembered as such.
  void learn_missing(const std::string& path) {
    const std::lock_guard lock(mutex_);
    for (const std::string& each : components_of(path)) {
      if (inode_at(each) != 0) continue;
      names_[each] = 0;
      forget_below(each);
      return;
    }
  }
  void forget_name(const std::string& path) {
    const std::lock_guard lock(mutex_);
    names_.erase(path);
  }
  // The directory was opened.
  void opened_directory(const std::string& path) {
    const std::lock_guard lock(mutex_);
    learn(path);
    revalidate(path);
  }

  [[nodiscard]] std::optional<FileStatus> cached_status(const std::string& path) {
    const std::lock_guard lock(mutex_);
    const auto name = names_.find(path);
    return name == names_.end() ? std::nullopt : cached(name->second);
  }
  [[nodiscard]] std::optional<FileStatus> cached_status(ino_t inode) {
    const std::lock_guard lock(mutex_);
    return cached(inode);
  }
  void note_attributes(const struct stat& info) {
    const std::lock_guard lock(mutex_);
    attributes_[info.st_ino] = {file_status_of(info), clock_.now()};
  }
  void forget_attributes(ino_t inode) {
    const std::lock_guard lock(mutex_);
    attributes_.erase(inode);
  }

  void opened_file(ino_t inode) {
    const std::lock_guard lock(mutex_);
    ++open_[inode];
  }
  void closed_file(ino_t inode) {
    const std::lock_guard lock(mutex_);
    if (--open_[inode] > 0) return;
    open_.erase(inode);
    const auto silly = renamed_.find(inode);
    if (silly == renamed_.end()) return;
    static_cast<void>(::unlink(silly->second.c_str()));
    renamed_.erase(silly);
  }
  // True: this host has the file open, so it was renamed instead of removed.
  [[nodiscard]] bool rename_if_open(const std::string& path) {
    const std::lock_guard lock(mutex_);
    const ino_t inode = inode_at(path);
    if (inode == 0 || !open_.contains(inode)) return false;
    char name[32];
    std::snprintf(name, sizeof name, "/.nfs%016llx", static_cast<unsigned long long>(inode));
    const std::string silly = parent_of(path) + name;
    if (::rename(path.c_str(), silly.c_str()) != 0) return false;
    renamed_[inode] = silly;
    return true;
  }

  void lose_link_reply(const std::string& to, int sys_errno) {
    const std::lock_guard lock(mutex_);
    lost_replies_.push_back({to, sys_errno});
  }
  [[nodiscard]] std::optional<int> lost_reply(const std::string& to) {
    const std::lock_guard lock(mutex_);
    for (auto lost = lost_replies_.begin(); lost != lost_replies_.end(); ++lost) {
      if (to.find(lost->first) == std::string::npos) continue;
      const int sys_errno = lost->second;
      lost_replies_.erase(lost);
      return sys_errno;
    }
    return std::nullopt;
  }

  [[nodiscard]] static std::string parent_of(const std::string& path) {
    const auto slash = path.rfind('/');
    if (slash == std::string::npos) return ".";
    return slash == 0 ? "/" : path.substr(0, slash);
  }

 private:
  struct Directory {
    ino_t inode;
    std::string change;
    TimePoint asked;
  };
  struct Attributes {
    FileStatus status;
    TimePoint asked;
  };

  // "/a", "/a/b", "/a/b/c"; a "." in it is no component.
  [[nodiscard]] static std::vector<std::string> components_of(const std::string& path) {
    std::vector<std::string> components;
    for (std::size_t at = 0; at < path.size();) {
      std::size_t end = path.find('/', at + 1);
      if (end == std::string::npos) end = path.size();
      const std::string_view last = std::string_view(path).substr(at, end - at);
      if (last != "/" && last != "/." && last != ".") components.push_back(path.substr(0, end));
      at = end;
    }
    return components;
  }
  // What the server has; 0: nothing.
  [[nodiscard]] static ino_t inode_at(const std::string& path) {
    struct stat info{};
    return ::lstat(path.c_str(), &info) == 0 ? info.st_ino : 0;
  }
  [[nodiscard]] static std::string change_of(const std::string& directory) {
    std::set<std::string> entries;
    DIR* const stream = ::opendir(directory.c_str());
    if (stream == nullptr) return "gone";
    while (const dirent* const entry = ::readdir(stream)) {
      if (std::strcmp(entry->d_name, "..") != 0)
        entries.insert(std::string(entry->d_name) + "/" + std::to_string(entry->d_ino));
    }
    ::closedir(stream);
    std::string change;
    for (const std::string& entry : entries) change += entry + "\n";
    return change;
  }
  [[nodiscard]] bool expired(TimePoint asked) const { return clock_.now() - asked >= kNfsAttributesKept; }

  bool walk(const std::string& path) {
    for (const std::string& each : components_of(path)) {
      revalidate_if_old(parent_of(each));
      auto name = names_.find(each);
      if (name == names_.end()) name = learn(each);
      if (name->second == 0) return false;
    }
    return true;
  }
  // The answer to a lookup brings the attributes along. (And an inode may have been another file's before.)
  std::map<std::string, ino_t>::iterator learn(const std::string& path) {
    struct stat info{};
    const ino_t inode = ::lstat(path.c_str(), &info) == 0 ? info.st_ino : 0;
    if (inode != 0) attributes_[inode] = {file_status_of(info), clock_.now()};
    const auto known = directories_.find(path);
    if (known != directories_.end() && known->second.inode != inode) forget_below(path);
    return names_.insert_or_assign(path, inode).first;
  }
  void revalidate_if_old(const std::string& directory) {
    const auto known = directories_.find(directory);
    if (known == directories_.end() || expired(known->second.asked)) revalidate(directory);
  }
  void revalidate(const std::string& directory) {
    Directory& known = directories_[directory];
    std::string change = change_of(directory);
    if (change != known.change) {
      const std::string prefix = directory == "/" ? directory : directory + "/";
      std::erase_if(names_, [&](const auto& each) {
        return each.first.starts_with(prefix) && each.first.find('/', prefix.size()) == std::string::npos;
      });
    }
    known = {inode_at(directory), std::move(change), clock_.now()};
  }
  // Of another directory that had this name.
  void forget_below(const std::string& path) {
    const auto below = [&](const auto& each) { return each.first.starts_with(path + "/"); };
    std::erase_if(names_, below);
    std::erase_if(directories_, [&](const auto& each) { return each.first == path || below(each); });
  }
  [[nodiscard]] std::optional<FileStatus> cached(ino_t inode) const {
    const auto known = attributes_.find(inode);
    if (known == attributes_.end() || expired(known->second.asked)) return std::nullopt;
    return known->second.status;
  }

  const Clock& clock_;
  std::mutex mutex_;                    // guards what follows
  std::map<std::string, ino_t> names_;  // 0: missing
  std::map<std::string, Directory> directories_;
  std::map<ino_t, Attributes> attributes_;
  std::map<ino_t, int> open_;             // files that this host has open, and how often
  std::map<ino_t, std::string> renamed_;  // those of them that it removed
  std::vector<std::pair<std::string, int>> lost_replies_;
};

class NfsFile final : public File {
 public:
  NfsFile(std::unique_ptr<File> inner, NfsHost& host) : inner_(std::move(inner)), host_(host) {
    inode_ = fetch_attributes().st_ino;
    host_.opened_file(inode_);
  }
  ~NfsFile() override { static_cast<void>(NfsFile::close()); }

  [[nodiscard]] Result<std::uint64_t> read_at(std::span<std::byte> into, std::uint64_t offset) override {
    if (Status flushed = flush(); !flushed) return fail(flushed.error());
    struct stat info{};
    if (::fstat(inner_->descriptor(), &info) == 0 && info.st_nlink == 0)
      return fail(error_from_errno(ESTALE, "the file was removed by another host", path()));
    return inner_->read_at(into, offset);
  }
  [[nodiscard]] Status write_at(std::span<const std::byte> bytes, std::uint64_t offset) override {
    if (inner_->direct()) return inner_->write_at(bytes, offset);
    pending_.emplace_back(offset, std::vector(bytes.begin(), bytes.end()));
    return {};
  }
  [[nodiscard]] Status allocate(std::uint64_t size_bytes) override {
    return flushed([&] { return inner_->allocate(size_bytes); });
  }
  [[nodiscard]] Status truncate(std::uint64_t size_bytes) override {
    return flushed([&] { return inner_->truncate(size_bytes); });
  }
  [[nodiscard]] Status sync_data() override {
    return flushed([&] { return inner_->sync_data(); });
  }
  [[nodiscard]] Status sync_all() override {
    return flushed([&] { return inner_->sync_all(); });
  }
  [[nodiscard]] Status close() override {
    if (std::exchange(closed_, true)) return inner_->close();
    Status flushed = flush();
    fetch_attributes();
    Status closed = inner_->close();
    host_.closed_file(inode_);
    return flushed ? closed : flushed;
  }
  [[nodiscard]] Result<FileStatus> status() const override {
    if (auto cached = host_.cached_status(inode_); cached && pending_.empty()) return *cached;
    if (Status written = const_cast<NfsFile*>(this)->flush(); !written) return fail(written.error());
    fetch_attributes();
    return inner_->status();
  }
  [[nodiscard]] Status set_direct(bool direct) override {
    return flushed([&] { return inner_->set_direct(direct); });
  }
  [[nodiscard]] bool direct() const override { return inner_->direct(); }
  [[nodiscard]] const std::string& path() const override { return inner_->path(); }
  [[nodiscard]] int descriptor() const override { return inner_->descriptor(); }

  [[nodiscard]] File& inner() { return *inner_; }

 private:
  struct stat fetch_attributes() const {
    struct stat info{};
    if (::fstat(inner_->descriptor(), &info) == 0) host_.note_attributes(info);
    return info;
  }
  [[nodiscard]] Status flush() {
    for (auto& [offset, bytes] : std::exchange(pending_, {})) {
      if (Status written = inner_->write_at(bytes, offset); !written) return written;
    }
    return {};
  }
  template <class Call>
  [[nodiscard]] Status flushed(const Call& call) {
    if (Status written = flush(); !written) return written;
    Status done = call();
    fetch_attributes();
    return done;
  }

  std::unique_ptr<File> inner_;
  NfsHost& host_;
  ino_t inode_ = 0;
  bool closed_ = false;
  std::vector<std::pair<std::uint64_t, std::vector<std::byte>>> pending_;  // not yet at the server
};

// Files given to it are NfsFiles.
class NfsQueue final : public IoQueue {
 public:
  explicit NfsQueue(std::unique_ptr<IoQueue> inner) : inner_(std::move(inner)) {}
  [[nodiscard]] std::string_view backend() const override { return inner_->backend(); }
  [[nodiscard]] std::string fallback_reason() const override { return inner_->fallback_reason(); }
  [[nodiscard]] unsigned depth() const override { return inner_->depth(); }
  [[nodiscard]] unsigned in_flight() const override { return inner_->in_flight(); }
  [[nodiscard]] Status register_buffer(int index, std::span<std::byte> memory) override {
    return inner_->register_buffer(index, memory);
  }
  [[nodiscard]] Status submit(const IoRequest& request) override {
    IoRequest passed = request;
    passed.file = &static_cast<NfsFile*>(request.file)->inner();
    return inner_->submit(passed);
  }
  [[nodiscard]] Status wait(std::vector<IoCompletion>& completions, std::optional<Duration> timeout) override {
    return inner_->wait(completions, timeout);
  }
  void forget(File& file) override { inner_->forget(static_cast<NfsFile&>(file).inner()); }
  void wake() override { inner_->wake(); }

 private:
  std::unique_ptr<IoQueue> inner_;
};

class NfsFileSystem final : public FileSystem {
 public:
  NfsFileSystem(FileSystem& server, const Clock& clock) : server_(server), host_(clock) {}

  // The next link() whose new name contains this is made, and answers with this errno all the same.
  void lose_link_reply(const std::string& to, int sys_errno) { host_.lose_link_reply(to, sys_errno); }

  [[nodiscard]] Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode, bool direct) override {
    const bool creates = mode == OpenMode::kCreateExclusive;
    if (!(creates ? host_.leads_to_parent_of(path) : host_.leads_to(path)))
      return missing(creates ? "cannot create the file" : "cannot open the file", path);
    auto file = server_.open(path, mode, direct);
    learn(path, file, creates);
    if (!file) return file;
    return std::make_unique<NfsFile>(std::move(*file), host_);
  }
  [[nodiscard]] Status make_directory(const std::string& path) override {
    if (!host_.leads_to_parent_of(path)) return missing("cannot make the directory", path);
    Status made = server_.make_directory(path);
    learn(path, made, true);
    return made;
  }
  [[nodiscard]] Status sync_directory(const std::string& path) override {
    if (!host_.leads_to(path)) return missing("cannot open the directory to sync it", path);
    Status synced = server_.sync_directory(path);
    learn(path, synced, false);
    if (synced) host_.opened_directory(path);
    return synced;
  }
  [[nodiscard]] Status link(const std::string& from, const std::string& to) override {
    if (!host_.leads_to(from) || !host_.leads_to_parent_of(to)) return missing("cannot link the file", to);
    const Status linked = server_.link(from, to);
    if (const auto lost = linked ? host_.lost_reply(to) : std::nullopt) {
      host_.forget_name(to);
      return fail(error_from_errno(*lost, "cannot link the file", to));
    }
    learn(to, linked, true);
    if (struct stat info{}; linked && ::lstat(to.c_str(), &info) == 0) host_.note_attributes(info);
    return linked;
  }
  [[nodiscard]] Status unlink(const std::string& path) override {
    if (!host_.leads_to(path)) return missing("cannot remove the file", path);
    struct stat info{};
    if (::lstat(path.c_str(), &info) == 0) host_.forget_attributes(info.st_ino);
    const Status removed = host_.rename_if_open(path) ? Status() : server_.unlink(path);
    if (removed || removed.error().kind == ErrorKind::kNotFound) host_.learn_missing(path);
    return removed;
  }
  [[nodiscard]] Status remove_directory(const std::string& path) override {
    if (!host_.leads_to(path)) return missing("cannot remove the directory", path);
    Status removed = server_.remove_directory(path);
    if (removed || removed.error().kind == ErrorKind::kNotFound) host_.learn_missing(path);
    return removed;
  }
  [[nodiscard]] Result<std::vector<DirectoryEntry>> list(const std::string& path) override {
    if (!host_.leads_to(path)) return missing("cannot list the directory", path);
    auto entries = server_.list(path);
    learn(path, entries, false);
    if (entries) host_.opened_directory(path);
    return entries;
  }
  [[nodiscard]] Result<FileStatus> status(const std::string& path) override {
    if (!host_.leads_to(path)) return missing("cannot read the status of the file", path);
    if (const auto cached = host_.cached_status(path)) return *cached;
    auto found = server_.status(path);
    learn(path, found, false);
    if (struct stat info{}; found && ::lstat(path.c_str(), &info) == 0) host_.note_attributes(info);
    return found;
  }
  [[nodiscard]] Result<std::uint64_t> free_bytes(const std::string& path) override { return server_.free_bytes(path); }
  [[nodiscard]] Result<std::unique_ptr<FileLock>> try_lock(const std::string& path) override {
    return server_.try_lock(path);
  }
  [[nodiscard]] Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueOptions& options) override {
    auto queue = server_.make_queue(options);
    if (!queue) return queue;
    return std::make_unique<NfsQueue>(std::move(*queue));
  }

 private:
  [[nodiscard]] static std::unexpected<Error> missing(const char* what, const std::string& path) {
    return fail(error_from_errno(ENOENT, what, path));
  }
  // What the server's answer tells this host about a name.
  template <class Answer>
  void learn(const std::string& path, const Answer& answer, bool creates) {
    if (answer) {
      host_.learn_there(path);
    } else if (answer.error().kind == ErrorKind::kNotFound) {
      host_.learn_missing(creates ? NfsHost::parent_of(path) : path);
    } else if (creates) {
      host_.forget_name(path);
    }
  }

  FileSystem& server_;
  NfsHost host_;
};

}  // namespace slackwater::test
