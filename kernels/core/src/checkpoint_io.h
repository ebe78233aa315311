// Files by name, with errors that say which.
#ifndef MXREC_SRC_CHECKPOINT_IO_H_
#define MXREC_SRC_CHECKPOINT_IO_H_

#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <vector>

#include "mxrec/span.h"
#include "mxrec/status.h"

namespace mxrec {

// What `errno` means for `doing` ("write", ...) the file.
Status IoError(const char* doing, const std::string& path, int error);

// A file descriptor that closes itself. Thread safety: none.
class FileHandle {
 public:
  FileHandle() = default;
  explicit FileHandle(int fd) : fd_(fd) {}
  FileHandle(FileHandle&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileHandle& operator=(FileHandle&& other) noexcept;
  ~FileHandle() { Close(); }
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

std::string DirectoryOf(const std::string& path);
std::string BaseOf(const std::string& path);
Status SyncDirectory(const std::string& directory);
bool FileExists(const std::string& path);
// Of what is in a directory; none if it cannot be read.
std::vector<std::string> NamesIn(const std::string& directory);
// All of `bytes`, at `offset`; DataLoss if the file is shorter.
Status ReadAt(int fd, const std::string& path, int64_t offset, void* to,
              int64_t bytes);
Status ReadAt(int fd, const std::string& path, int64_t offset,
              const std::vector<Span<char>>& pieces);
// One piece after another, however often it takes.
Status WriteAll(int fd, const std::string& path, std::vector<iovec> pieces);

}  // namespace mxrec

#endif  // MXREC_SRC_CHECKPOINT_IO_H_
