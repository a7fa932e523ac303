// ExportStage: a private directory beside what is exported, where files are written and synced before they get their
// final names. A crash leaves nothing that looks complete: the file that makes a set complete gets its name last.
// Holds a lock, so that two exports to one place do not mix. What a killed export left is removed by the next.
// Thread rule: one thread. Lifetime: the FileSystem outlives it. The destructor removes the private directory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "os/durable.hpp"
#include "os/file_system.hpp"

namespace slackwater::formats {

class ExportStage {
 public:
  // `directory` is where the files will go; it is made if only its last component is missing. `name` is that of the
  // private directory in it. kBusy: another export is writing there.
  [[nodiscard]] static Result<std::unique_ptr<ExportStage>> open(FileSystem& fs, const std::string& directory,
                                                                 const std::string& name);
  ~ExportStage();
  ExportStage(const ExportStage&) = delete;
  ExportStage& operator=(const ExportStage&) = delete;

  // A file in the private directory, to be written and then finish()ed.
  [[nodiscard]] Result<DurableFile> create(const std::string& name, std::uint64_t size_bytes);
  [[nodiscard]] Status write(const std::string& name, std::string_view bytes);  // a small file, synced

  // Names of files that are there already and match; for refusing, or for replacing them.
  [[nodiscard]] Result<std::vector<std::string>> existing(const std::function<bool(std::string_view)>& matches) const;
  // Removes files of an earlier export. Those that make its set complete come first.
  [[nodiscard]] Status remove(const std::vector<std::string>& names);

  // Gives the files their names in the directory, in this order, and syncs it before the last one and at the end.
  [[nodiscard]] Status publish(const std::vector<std::string>& names);

 private:
  ExportStage(FileSystem& fs, std::string directory, std::string stage);
  void empty();

  FileSystem& fs_;
  const std::string directory_;
  const std::string stage_;
  std::unique_ptr<FileLock> lock_;
};

}  // namespace slackwater::formats
