#include "checkpoint_io.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace mxrec {

Status IoError(const char* doing, const std::string& path, int error) {
  const std::string message = std::string("cannot ") + doing + " '" + path +
                              "': " + std::strerror(error);
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return Status::ResourceExhausted(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return Status::PermissionDenied(message);
    case ENOENT:
    case ENOTDIR:
      return Status::NotFound(message);
    case ENAMETOOLONG:
      return Status::InvalidArgument(message);
    default:
      return Status::Internal(message);
  }
}

FileHandle& FileHandle::operator=(FileHandle&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = other.fd_;
    other.fd_ = -1;
  }
  return *this;
}

void FileHandle::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string BaseOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

Status SyncDirectory(const std::string& directory) {
  const FileHandle handle(
      open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle.is_open()) return IoError("open", directory, errno);
  // Some file systems cannot; there is nothing to flush then.
  if (fsync(handle.get()) != 0 && errno != EINVAL && errno != ENOTSUP) {
    return IoError("flush", directory, errno);
  }
  return Status::Ok();
}

bool FileExists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

Status ReadAt(int fd, const std::string& path, int64_t offset, void* to,
              int64_t bytes) {
  return ReadAt(fd, path, offset, {{static_cast<char*>(to), bytes}});
}

Status ReadAt(int fd, const std::string& path, int64_t offset,
              const std::vector<Span<char>>& pieces) {
  constexpr size_t kPiecesAtATime = 64;
  std::vector<iovec> left;
  int64_t bytes = 0;
  for (const Span<char>& piece : pieces) {
    if (piece.empty()) continue;
    left.push_back({piece.data(), static_cast<size_t>(piece.size())});
    bytes += piece.size();
  }
  size_t first = 0;
  while (bytes > 0) {
    const int count =
        static_cast<int>(std::min(left.size() - first, kPiecesAtATime));
    const ssize_t n = preadv(fd, left.data() + first, count, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return IoError("read", path, errno);
    if (n == 0) {
      return Status::DataLoss("'" + path + "' is truncated: it ends at byte " +
                              std::to_string(offset) + ", " +
                              std::to_string(bytes) + " bytes too early");
    }
    offset += n;
    bytes -= n;
    size_t read = static_cast<size_t>(n);
    while (first < left.size() && read >= left[first].iov_len) {
      read -= left[first++].iov_len;
    }
    if (first == left.size()) break;
    left[first].iov_base = static_cast<char*>(left[first].iov_base) + read;
    left[first].iov_len -= read;
  }
  return Status::Ok();
}

std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  DIR* const dir = opendir(directory.c_str());
  if (dir == nullptr) return names;
  while (const dirent* const found = readdir(dir)) {
    const std::string name = found->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(dir);
  return names;
}

Status WriteAll(int fd, const std::string& path, std::vector<iovec> pieces) {
  size_t first = 0;
  while (first < pieces.size()) {
    const int n = static_cast<int>(std::min<size_t>(pieces.size() - first, 64));
    ssize_t written = writev(fd, pieces.data() + first, n);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return IoError("write", path, errno);
    while (first < pieces.size() &&
           written >= static_cast<ssize_t>(pieces[first].iov_len)) {
      written -= static_cast<ssize_t>(pieces[first].iov_len);
      ++first;
    }
    if (first < pieces.size()) {
      pieces[first].iov_base =
          static_cast<char*>(pieces[first].iov_base) + written;
      pieces[first].iov_len -= static_cast<size_t>(written);
    }
  }
  return Status::Ok();
}

}  // namespace mxrec
