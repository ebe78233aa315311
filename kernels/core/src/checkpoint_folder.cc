#include "mxrec/checkpoint_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdio>
#include <ctime>

#include "checkpoint_io.h"
#include "mxrec/checkpoint.h"

namespace mxrec {
namespace {

constexpr char kFull[] = "sparse-";
constexpr char kDelta[] = "delta-sparse-";
constexpr char kFile[] = "manifest";
constexpr char kMagic[] = "mxrec-table=";
// Of a folder that is being made or removed. No pattern `sparse-*` finds it.
constexpr char kHidden[] = ".";
constexpr char kUnfinished[] = ".unfinished";
// Older ones are of a process that was killed. It takes milliseconds to make
// one, so a younger one may be of another process that saves here.
constexpr time_t kOldSeconds = 3600;

bool StartsWith(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() &&
         text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Not through a symbolic link, behind which may be anything.
bool IsDirectory(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool IsOld(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 &&
         time(nullptr) - info.st_mtime > kOldSeconds;
}

std::string DirectoryOfTable(const std::string& table) {
  std::string name;
  const bool leads_elsewhere = table == "." || table == "..";
  for (const char c : table) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(c)) ||
                          c == '_' || c == '-' ||
                          (c == '.' && !leads_elsewhere);
    char escaped[4];
    std::snprintf(escaped, sizeof(escaped), "%%%02X",
                  static_cast<unsigned char>(c));
    name += is_plain ? std::string(1, c) : escaped;
  }
  return name;
}

std::string HiddenName(const std::string& folder) {
  return DirectoryOf(folder) + "/" + kHidden + BaseOf(folder) + kUnfinished;
}

bool IsManifest(const std::string& path) {
  const FileHandle handle(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  char start[sizeof(kMagic) - 1];
  return handle.is_open() &&
         ReadAt(handle.get(), path, 0, start, sizeof(start)).ok() &&
         std::string(start, sizeof(start)) == kMagic;
}

// Whether a folder of that name was made here and has not been added to.
bool IsOurs(const std::string& folder) {
  if (!IsDirectory(folder)) return false;
  const std::vector<std::string> tables = NamesIn(folder);
  for (const std::string& table : tables) {
    const std::string path = folder + "/" + table;
    if (!IsDirectory(path) ||
        NamesIn(path) != std::vector<std::string>{kFile} ||
        !IsManifest(path + "/" + kFile)) {
      return false;
    }
  }
  return !tables.empty();
}

// Removes what these functions put there, and the folder if nothing is left.
void RemoveHidden(const std::string& hidden) {
  if (!IsDirectory(hidden)) return;
  for (const std::string& table : NamesIn(hidden)) {
    const std::string path = hidden + "/" + table;
    if (!IsDirectory(path)) continue;
    unlink((path + "/" + kFile).c_str());
    rmdir(path.c_str());
  }
  rmdir(hidden.c_str());
}

// In one step for who looks for it.
void RemoveFolder(const std::string& folder) {
  if (!IsOurs(folder)) return;
  const std::string hidden = HiddenName(folder);
  RemoveHidden(hidden);
  if (rename(folder.c_str(), hidden.c_str()) == 0) RemoveHidden(hidden);
}

void RemoveStaleFolders(const std::string& directory) {
  for (const std::string& name : NamesIn(directory)) {
    for (const char* const start : {kFull, kDelta}) {
      if (StartsWith(name, kHidden + std::string(start)) &&
          EndsWith(name, kUnfinished) && IsOld(directory + "/" + name)) {
        RemoveHidden(directory + "/" + name);
      }
      if (!StartsWith(name, start)) continue;
      const std::string checkpoint =
          directory + "/" + name.substr(std::string(start).size());
      if (FileExists(checkpoint + ".index") || FileExists(checkpoint)) continue;
      RemoveFolder(directory + "/" + name);
    }
  }
}

Status WriteText(const std::string& path, const std::string& text) {
  const FileHandle handle(
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
           0666));
  if (!handle.is_open()) return IoError("write", path, errno);
  return WriteAll(handle.get(), path,
                  {{const_cast<char*>(text.data()), text.size()}});
}

Status MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0777) != 0) return IoError("make", path, errno);
  return Status::Ok();
}

Status WriteTables(const std::string& folder,
                   const std::vector<SavedTable>& tables,
                   const std::vector<std::string>& manifests) {
  Status status = MakeDirectory(folder);
  for (size_t t = 0; t < tables.size() && status.ok(); ++t) {
    const std::string path =
        folder + "/" + DirectoryOfTable(tables[t].manifest.table);
    status = MakeDirectory(path);
    if (status.ok()) status = WriteText(path + "/" + kFile, manifests[t]);
  }
  return status;
}

}  // namespace

Status MakeCheckpointFolder(const std::string& prefix,
                            const std::vector<std::string>& manifests) {
  const std::string directory = DirectoryOf(prefix);
  const std::string base = BaseOf(prefix);
  if (base == "variables" && BaseOf(directory) == "variables") {
    return Status::Ok();
  }
  std::vector<SavedTable> tables(manifests.size());
  bool is_delta = false;
  for (size_t t = 0; t < manifests.size(); ++t) {
    const Status status =
        SavedTable::Decode(manifests[t], "'" + prefix + "'", &tables[t]);
    if (!status.ok()) return status;
    is_delta = is_delta || tables[t].manifest.is_delta;
  }
  const std::string full = directory + "/" + kFull + base;
  const std::string delta = directory + "/" + kDelta + base;
  const std::string folder = is_delta ? delta : full;
  const std::string hidden = HiddenName(folder);
  RemoveStaleFolders(directory);
  RemoveFolder(full);
  RemoveFolder(delta);
  RemoveHidden(hidden);
  if (tables.empty()) return Status::Ok();
  const Status status = WriteTables(hidden, tables, manifests);
  if (!status.ok()) {
    RemoveHidden(hidden);
    return status;
  }
  if (rename(hidden.c_str(), folder.c_str()) != 0) {
    const int error = errno;
    RemoveHidden(hidden);
    return IoError("make", folder, error);
  }
  return Status::Ok();
}

}  // namespace mxrec
