// The files of tables in a checkpoint's directory: which belong together, and
// which nothing needs any more.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "checkpoint_io.h"
#include "mxrec/checkpoint.h"
#include "table_file.h"

namespace mxrec {
namespace {

struct Entry {
  std::string checkpoint;  // last part of the checkpoint's prefix
  std::string suffix;
  bool finished() const { return suffix[15] == 'm'; }
};

// The files of tables in a directory.
std::vector<Entry> List(const std::string& directory) {
  std::vector<Entry> entries;
  for (const std::string& name : NamesIn(directory)) {
    const size_t at = name.rfind(".data-");
    if (at == std::string::npos || at == 0) continue;
    if (!IsTableFileSuffix(name.substr(at))) continue;
    entries.push_back({name.substr(0, at), name.substr(at)});
  }
  return entries;
}

bool BelongsToACheckpoint(const std::string& prefix) {
  return FileExists(prefix + ".index") || FileExists(prefix);
}

// Unless a writer is alive: that holds a lock on a file of its checkpoint. Of
// `of_checkpoint`, if that is not null, the paths are to be all files: a list
// that was made while a writer began may lack the one that it has locked.
void RemoveIfAbandoned(const std::vector<std::string>& paths,
                       const std::string* of_checkpoint = nullptr) {
  std::vector<FileHandle> locked;
  for (const std::string& path : paths) {
    FileHandle handle(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!handle.is_open()) continue;
    if (flock(handle.get(), LOCK_EX | LOCK_NB) != 0) return;
    locked.push_back(std::move(handle));
  }
  if (of_checkpoint != nullptr) {
    const std::string directory = DirectoryOf(*of_checkpoint);
    const std::set<std::string> known(paths.begin(), paths.end());
    for (const Entry& entry : List(directory)) {
      if (entry.checkpoint == BaseOf(*of_checkpoint) &&
          known.count(*of_checkpoint + entry.suffix) == 0) {
        return;
      }
    }
  }
  for (const std::string& path : paths) unlink(path.c_str());
}

// What tells the index of a checkpoint from that of another save to the same
// prefix: TensorFlow's index has a checksum of every tensor, our manifests
// included.
std::string IndexMark(const std::string& prefix) {
  const std::string path = prefix + ".index";
  const FileHandle handle(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!handle.is_open()) return "none";
  uint32_t crc = 0;
  int64_t bytes = 0;
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = read(handle.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    crc = Crc32c(crc, buffer, static_cast<size_t>(n));
    bytes += n;
  }
  char mark[40];
  std::snprintf(mark, sizeof(mark), "%08x-%lld", crc,
                static_cast<long long>(bytes));
  return mark;
}

}  // namespace

Status PrepareFile(const std::string& prefix, int file_number,
                   Manifest* manifest) {
  if (prefix.find("://") != std::string::npos) {
    return Status::InvalidArgument(
        "table '" + manifest->table + "': cannot save to '" + prefix +
        "': tables are saved to file systems that are mounted");
  }
  const std::string directory = DirectoryOf(prefix);
  const std::string base = BaseOf(prefix);
  const std::string number =
      TableFileSuffix("00000", file_number, true).substr(16);
  manifest->checkpoint = base;
  manifest->index_before = IndexMark(prefix);

  // Files of earlier saves to this very prefix, last first.
  std::vector<Manifest> earlier;
  // Files of checkpoints that were never completed.
  std::map<std::string, std::vector<std::string>> incomplete;
  for (const Entry& entry : List(directory)) {
    const std::string path = directory + "/" + entry.checkpoint + entry.suffix;
    if (!BelongsToACheckpoint(directory + "/" + entry.checkpoint)) {
      // Those of this one may be other tables', which are saved just now.
      if (entry.checkpoint != base) {
        incomplete[entry.checkpoint].push_back(path);
      }
      continue;
    }
    if (!entry.finished()) {
      RemoveIfAbandoned({path});
      continue;
    }
    if (entry.checkpoint != base || entry.suffix.substr(16) != number) continue;
    std::unique_ptr<TableFileReader> reader;
    if (!TableFileReader::Create(path, nullptr, &reader).ok()) continue;
    if (reader->manifest().checkpoint != base) continue;
    manifest->sequence =
        std::max(manifest->sequence, reader->manifest().sequence + 1);
    earlier.push_back(reader->manifest());
  }
  for (const auto& checkpoint : incomplete) {
    const std::string other = directory + "/" + checkpoint.first;
    RemoveIfAbandoned(checkpoint.second, &other);
  }
  std::sort(earlier.begin(), earlier.end(),
            [](const Manifest& a, const Manifest& b) {
              return a.sequence > b.sequence;
            });
  // The checkpoint refers to the last file after which its index changed.
  const auto current = std::find_if(
      earlier.begin(), earlier.end(), [&](const Manifest& candidate) {
        return candidate.index_before != manifest->index_before;
      });
  if (current == earlier.end() || manifest->index_before == "none") {
    return Status::Ok();
  }
  std::set<std::string> needed = {current->content};
  for (const SavedFile& file : current->base) needed.insert(file.content);
  for (const Manifest& candidate : earlier) {
    if (needed.count(candidate.content) > 0) continue;
    RemoveIfAbandoned(
        {prefix + TableFileSuffix(candidate.content, file_number, true)});
  }
  return Status::Ok();
}

Status LinkFiles(const std::string& from, const std::string& to,
                 const std::vector<SavedFile>& files, bool* linked) {
  *linked = true;
  for (const SavedFile& file : files) {
    const std::string source = from + file.suffix;
    const std::string target = to + file.suffix;
    if (link(source.c_str(), target.c_str()) == 0) continue;
    const int error = errno;
    // Saved to that prefix before.
    std::unique_ptr<TableFileReader> reader;
    if (error == EEXIST &&
        TableFileReader::Create(target, &file, &reader).ok()) {
      continue;
    }
    if (error == EPERM || error == EOPNOTSUPP || error == EXDEV ||
        error == EMLINK || error == ENOENT) {
      *linked = false;
      return Status::Ok();
    }
    return IoError("link", target, error);
  }
  return Status::Ok();
}

}  // namespace mxrec
