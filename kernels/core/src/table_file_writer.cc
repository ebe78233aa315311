#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "checkpoint_io.h"
#include "mxrec/checkpoint.h"
#include "table_file.h"

namespace mxrec {
namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 20;
constexpr int64_t kMaxBlockElements = int64_t{1} << 16;
constexpr int64_t kMinBuffers = 3;
constexpr int64_t kMaxBuffers = 64;
// One of so many buffers is kept for those whom training waits for.
constexpr int64_t kHurriedShare = 4;
// After so many bytes the kernel is asked to begin writing them, so that the
// flush at the end has little left to do.
constexpr int64_t kWriteBackBytes = int64_t{8} << 20;
constexpr mode_t kFileMode = 0644;

// Which file a path leads to, and which content of it.
struct Identity {
  bool exists = false;
  ino_t inode = 0;
  int64_t bytes = 0;
  int64_t seconds = 0;
  int64_t nanoseconds = 0;
  bool operator==(const Identity& other) const {
    return exists == other.exists && inode == other.inode &&
           bytes == other.bytes && seconds == other.seconds &&
           nanoseconds == other.nanoseconds;
  }
};

Identity IdentityOf(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) return {};
  return {true, found.st_ino, found.st_size, found.st_mtim.tv_sec,
          found.st_mtim.tv_nsec};
}

// A finished file stays locked (see PrepareFile) until what refers to it is
// written: its checkpoint has another index than before, or its table has two
// later files there. All are looked at with each new file.
constexpr size_t kKeptLocked = 2;

struct LockedFile {
  FileHandle file;
  std::string index;
  Identity index_before;

  bool IsOver() const {
    struct stat found;
    if (fstat(file.get(), &found) != 0 || found.st_nlink == 0) return true;
    const Identity now = IdentityOf(index);
    return now.exists && !(now == index_before);
  }
};

class LockedFiles {
 public:
  static LockedFiles& Global() {
    static auto* const files = new LockedFiles;
    return *files;
  }
  void Keep(const std::string& key, LockedFile file) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::deque<LockedFile>& files = kept_[key];
    files.push_back(std::move(file));
    if (files.size() > kKeptLocked) files.pop_front();
  }
  void CloseThoseThatAreOver() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto entry = kept_.begin(); entry != kept_.end();) {
      std::deque<LockedFile>& files = entry->second;
      files.erase(
          std::remove_if(files.begin(), files.end(),
                         [](const LockedFile& file) { return file.IsOver(); }),
          files.end());
      entry = files.empty() ? kept_.erase(entry) : std::next(entry);
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::deque<LockedFile>> kept_;
};

std::string NewContentId() {
  static std::mutex mutex;
  static std::mt19937_64 generator{std::random_device{}() ^
                                   (uint64_t{std::random_device{}()} << 32) ^
                                   static_cast<uint64_t>(getpid())};
  std::lock_guard<std::mutex> lock(mutex);
  char id[17];
  std::snprintf(id, sizeof(id), "%016llx",
                static_cast<unsigned long long>(generator()));
  return id;
}

int64_t ElementBytes(const std::vector<Column>& columns) {
  int64_t bytes = 0;
  for (const Column& column : columns) bytes += column.element_bytes();
  return std::max<int64_t>(bytes, 1);
}

}  // namespace

std::string TableFileSuffix(const std::string& content, int file_number,
                            bool finished) {
  char suffix[32];
  // Base 36, so that four characters are enough for a million tables.
  char number[5] = "0000";
  for (int i = 3; i >= 0; --i) {
    number[i] = "0123456789abcdefghijklmnopqrstuvwxyz"[file_number % 36];
    file_number /= 36;
  }
  std::snprintf(suffix, sizeof(suffix), ".data-%.5s-of-%c%s", content.c_str(),
                finished ? 'm' : 't', number);
  return suffix;
}

bool IsTableFileSuffix(const std::string& suffix) {
  // .data-xxxxx-of-mnnnn
  if (suffix.size() != 20 || suffix.compare(0, 6, ".data-") != 0 ||
      suffix.compare(11, 4, "-of-") != 0) {
    return false;
  }
  return suffix[15] == 'm' || suffix[15] == 't';
}

BlockBuffer::BlockBuffer(const std::vector<Column>& columns, int64_t capacity)
    : columns_(columns), capacity_(capacity) {
  int64_t bytes = 0;
  for (const Column& column : columns_) {
    offsets_.push_back(bytes);
    bytes += (capacity * column.element_bytes() + 63) & ~int64_t{63};
  }
  data_.reset(new char[static_cast<size_t>(std::max<int64_t>(bytes, 64))]);
}

struct TableFileWriter::Impl {
  std::string prefix;
  std::string temporary;
  std::string path;
  std::string lock_key;
  std::string index;  // of the checkpoint
  Identity index_before;
  SavedFile file;
  FileHandle handle;
  std::vector<Column> row_columns;
  int64_t block_elements = 0;
  int64_t max_buffers = 0;
  bool finished = false;

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::deque<std::unique_ptr<BlockBuffer>> full;
  std::vector<std::unique_ptr<BlockBuffer>> empty;
  int64_t buffers = 0;
  bool busy = false;  // somebody writes a block
  bool stop = false;
  Status status;

  // Of who has made the writer busy.
  int64_t offset = 0;
  int64_t flushed = 0;
  int64_t blocks = 0;
  uint32_t blocks_crc = 0;
  int64_t elements[5] = {};
  std::thread thread;

  ~Impl() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      stop = true;
    }
    changed.notify_all();
    if (thread.joinable()) thread.join();
    if (handle.is_open() && !finished) unlink(temporary.c_str());
  }

  Status WriteBlockNow(const BlockBuffer& buffer) {
    static const char zeros[kColumnAlignment] = {};
    BlockHeader header{};
    header.magic = kBlockMagic;
    header.kind = static_cast<uint32_t>(buffer.kind);
    header.size = static_cast<uint64_t>(buffer.size);
    std::vector<iovec> pieces(1, {&header, sizeof(header)});
    uint32_t crc = 0;
    for (size_t c = 0; c < buffer.columns().size(); ++c) {
      const int64_t bytes = buffer.size * buffer.columns()[c].element_bytes();
      const int64_t padding = Aligned(bytes) - bytes;
      const char* data = buffer.bytes_of(static_cast<int>(c));
      crc = Crc32c(crc, data, static_cast<size_t>(bytes));
      crc = Crc32c(crc, zeros, static_cast<size_t>(padding));
      pieces.push_back({const_cast<char*>(data), static_cast<size_t>(bytes)});
      pieces.push_back(
          {const_cast<char*>(zeros), static_cast<size_t>(padding)});
      header.bytes += static_cast<uint64_t>(bytes + padding);
    }
    header.payload_crc = crc;
    header.crc = Crc32c(0, &header, offsetof(BlockHeader, crc));
    const Status written = WriteAll(handle.get(), temporary, pieces);
    if (!written.ok()) return written;
    offset += static_cast<int64_t>(sizeof(header) + header.bytes);
    if (offset - flushed >= kWriteBackBytes) {
      sync_file_range(handle.get(), flushed, offset - flushed,
                      SYNC_FILE_RANGE_WRITE);
      flushed = offset;
    }
    ++blocks;
    blocks_crc = Crc32c(blocks_crc, &header.payload_crc, sizeof(uint32_t));
    elements[header.kind] += buffer.size;
    return Status::Ok();
  }

  void Run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return !busy && (stop || !full.empty()); });
      if (full.empty()) return;
      std::unique_ptr<BlockBuffer> buffer = std::move(full.front());
      full.pop_front();
      if (status.ok()) {
        busy = true;
        lock.unlock();
        const Status written = WriteBlockNow(*buffer);
        lock.lock();
        busy = false;
        if (!written.ok() && status.ok()) status = written;
      }
      buffer->size = 0;
      empty.push_back(std::move(buffer));
      changed.notify_all();
    }
  }

  // For the holder of the mutex, as are the next two.
  int64_t FreeBuffers() const {
    return static_cast<int64_t>(empty.size()) + max_buffers - buffers;
  }
  // Until more than `others` are free, or a failure.
  void WaitForFree(int64_t others, std::unique_lock<std::mutex>* lock) {
    changed.wait(*lock, [this, others] {
      return FreeBuffers() > others || !status.ok();
    });
  }
  std::unique_ptr<BlockBuffer> TakeFree() {
    if (!status.ok() || FreeBuffers() <= 0) return nullptr;
    if (empty.empty()) {
      ++buffers;
      return std::make_unique<BlockBuffer>(row_columns, block_elements);
    }
    std::unique_ptr<BlockBuffer> buffer = std::move(empty.back());
    empty.pop_back();
    buffer->kind = BlockKind::kRows;
    buffer->size = 0;
    return buffer;
  }

  void WaitUntilIdle(std::unique_lock<std::mutex>* lock) {
    changed.wait(*lock, [this] { return full.empty() && !busy; });
  }
};

TableFileWriter::TableFileWriter(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
TableFileWriter::~TableFileWriter() = default;

Status TableFileWriter::Create(const std::string& prefix, int file_number,
                               const Manifest& manifest, int64_t buffer_bytes,
                               std::unique_ptr<TableFileWriter>* writer) {
  LockedFiles::Global().CloseThoseThatAreOver();
  auto impl = std::make_unique<Impl>();
  impl->prefix = prefix;
  impl->index = prefix + ".index";
  impl->index_before = IdentityOf(impl->index);
  // As TensorFlow's own writer does.
  const std::string directory = DirectoryOf(prefix);
  if (mkdir(directory.c_str(), 0755) != 0 && errno != EEXIST) {
    return IoError("create directory", directory, errno);
  }
  for (int attempt = 0;; ++attempt) {
    impl->file.content = NewContentId();
    impl->file.suffix = TableFileSuffix(impl->file.content, file_number, true);
    impl->path = prefix + impl->file.suffix;
    impl->temporary =
        prefix + TableFileSuffix(impl->file.content, file_number, false);
    if (FileExists(impl->path) && attempt < 100) continue;
    impl->handle =
        FileHandle(open(impl->temporary.c_str(),
                        O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kFileMode));
    if (!impl->handle.is_open()) {
      if (errno == EEXIST && attempt < 100) continue;
      return IoError("create", impl->temporary, errno);
    }
    // Not fatal where a file system has no locks: it is for cleaning up only,
    // which another save may have done just before the lock.
    (void)flock(impl->handle.get(), LOCK_EX);
    if (FileExists(impl->temporary) || attempt >= 100) break;
  }
  impl->lock_key = directory + "/" + manifest.table;
  impl->row_columns = manifest.columns.at(BlockKind::kRows);
  impl->block_elements =
      std::clamp(kBlockBytes / ElementBytes(impl->row_columns), int64_t{1},
                 kMaxBlockElements);
  const int64_t block_bytes =
      impl->block_elements * ElementBytes(impl->row_columns);
  impl->max_buffers =
      std::clamp(buffer_bytes / block_bytes, kMinBuffers, kMaxBuffers);

  FileHeader header{};
  std::memcpy(header.magic, kFileMagic, sizeof(header.magic));
  header.version = Manifest::kVersion;
  std::memcpy(header.content, impl->file.content.data(),
              sizeof(header.content));
  header.crc = Crc32c(0, &header, offsetof(FileHeader, crc));
  const Status status = WriteAll(impl->handle.get(), impl->temporary,
                                 {{&header, sizeof(header)}});
  if (!status.ok()) return status;
  impl->offset = sizeof(header);
  Impl* const raw = impl.get();
  impl->thread = std::thread([raw] { raw->Run(); });
  writer->reset(new TableFileWriter(std::move(impl)));
  return Status::Ok();
}

std::unique_ptr<BlockBuffer> TableFileWriter::Take() {
  std::unique_lock<std::mutex> lock(impl_->mutex);
  impl_->WaitForFree(0, &lock);
  return impl_->TakeFree();
}

std::unique_ptr<BlockBuffer> TableFileWriter::TakeUnhurried() {
  std::unique_lock<std::mutex> lock(impl_->mutex);
  const int64_t others =
      std::max<int64_t>(impl_->max_buffers / kHurriedShare, 1);
  impl_->WaitForFree(others, &lock);
  return impl_->TakeFree();
}

std::unique_ptr<BlockBuffer> TableFileWriter::TryTake() {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->TakeFree();
}

void TableFileWriter::WaitForBuffer() {
  std::unique_lock<std::mutex> lock(impl_->mutex);
  impl_->WaitForFree(0, &lock);
}

void TableFileWriter::Submit(std::unique_ptr<BlockBuffer> buffer) {
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    (buffer->size > 0 ? impl_->full.emplace_back()
                      : impl_->empty.emplace_back()) = std::move(buffer);
  }
  impl_->changed.notify_all();
}

Status TableFileWriter::WriteBlock(BlockBuffer* buffer) {
  std::unique_lock<std::mutex> lock(impl_->mutex);
  impl_->changed.wait(lock, [this] { return !impl_->busy; });
  if (!impl_->status.ok()) return impl_->status;
  impl_->busy = true;
  lock.unlock();
  const Status status = impl_->WriteBlockNow(*buffer);
  lock.lock();
  impl_->busy = false;
  if (!status.ok() && impl_->status.ok()) impl_->status = status;
  impl_->changed.notify_all();
  return status;
}

Status TableFileWriter::status() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->status;
}

Status TableFileWriter::Finish(Manifest* manifest, SavedFile* file) {
  {
    std::unique_lock<std::mutex> lock(impl_->mutex);
    impl_->WaitUntilIdle(&lock);
    if (!impl_->status.ok()) return impl_->status;
  }
  const int64_t manifest_offset = impl_->offset;
  manifest->content = impl_->file.content;
  manifest->rows = impl_->elements[static_cast<int>(BlockKind::kRows)];
  manifest->evicted = impl_->elements[static_cast<int>(BlockKind::kEvicted)];
  manifest->history = impl_->elements[static_cast<int>(BlockKind::kHistory)];
  manifest->blocks = impl_->blocks;
  manifest->blocks_crc = impl_->blocks_crc;
  const std::string text = manifest->Encode();
  BlockHeader header{};
  header.magic = kBlockMagic;
  header.kind = static_cast<uint32_t>(BlockKind::kManifest);
  header.size = 1;
  header.bytes = text.size();
  header.payload_crc = Crc32c(0, text.data(), text.size());
  header.crc = Crc32c(0, &header, offsetof(BlockHeader, crc));
  FileTrailer trailer{};
  std::memcpy(trailer.magic, kEndMagic, sizeof(trailer.magic));
  trailer.manifest_offset = static_cast<uint64_t>(manifest_offset);
  trailer.file_bytes = static_cast<uint64_t>(manifest_offset) + sizeof(header) +
                       text.size() + sizeof(trailer);
  trailer.manifest_crc = header.payload_crc;
  trailer.crc = Crc32c(0, &trailer, offsetof(FileTrailer, crc));
  const int fd = impl_->handle.get();
  Status status = WriteAll(fd, impl_->temporary,
                           {{&header, sizeof(header)},
                            {const_cast<char*>(text.data()), text.size()},
                            {&trailer, sizeof(trailer)}});
  if (!status.ok()) return status;
  if (fdatasync(fd) != 0) return IoError("flush", impl_->temporary, errno);
  if (rename(impl_->temporary.c_str(), impl_->path.c_str()) != 0) {
    return IoError("rename", impl_->temporary, errno);
  }
  impl_->finished = true;
  status = SyncDirectory(DirectoryOf(impl_->path));
  if (!status.ok()) return status;
  impl_->file.manifest_crc = header.payload_crc;
  *file = impl_->file;
  LockedFiles::Global().Keep(
      impl_->lock_key,
      {std::move(impl_->handle), impl_->index, impl_->index_before});
  return Status::Ok();
}

const std::string& TableFileWriter::path() const { return impl_->path; }
const std::string& TableFileWriter::content() const {
  return impl_->file.content;
}

}  // namespace mxrec
