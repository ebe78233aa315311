#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "checkpoint_io.h"
#include "mxrec/checkpoint.h"
#include "table_file.h"

namespace mxrec {
namespace {

// Larger ones are not written; a damaged number must not make us allocate.
constexpr uint64_t kMaxPayload = uint64_t{1} << 31;
// A file gives each thread so much to do; more threads than that, a disk does
// not keep busy.
constexpr int64_t kBytesPerThread = int64_t{4} << 20;
constexpr int kMaxThreads = 8;

// The header of a block, checked, and where its payload is.
struct BlockPlace {
  BlockKind kind = BlockKind::kRows;
  int64_t size = 0;
  int64_t begin = 0;
  int64_t bytes = 0;
  uint32_t crc = 0;
};

// Memory for payloads, one after the other. Not a vector: it would be filled
// with zeros first.
class PayloadBuffer {
 public:
  // Null if there is no memory.
  char* Get(int64_t bytes) {
    if (capacity_ < bytes) {
      data_.reset(new (std::nothrow) char[static_cast<size_t>(bytes)]);
      capacity_ = data_ == nullptr ? 0 : bytes;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<char[]> data_;
  int64_t capacity_ = 0;
};

bool SameBytes(const char* a, const char* b, size_t n) {
  return std::memcmp(a, b, n) == 0;
}

}  // namespace

struct TableFileReader::Impl {
  std::string path;
  FileHandle handle;
  int64_t file_bytes = 0;
  int64_t manifest_offset = 0;
  Manifest manifest;

  class Thread;

  Status Bad(const std::string& why) const {
    return Status::DataLoss("'" + path + "' is damaged: " + why);
  }

  Status Open(const SavedFile* expected) {
    handle = FileHandle(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!handle.is_open()) {
      // A part of a checkpoint that is missing is damage to the checkpoint.
      if (errno == ENOENT) {
        return Status::DataLoss("'" + path +
                                "' is missing; a checkpoint needs all of its "
                                "files");
      }
      return IoError("open", path, errno);
    }
    struct stat info;
    if (fstat(handle.get(), &info) != 0) return IoError("read", path, errno);
    if (!S_ISREG(info.st_mode)) return Bad("it is no regular file");
    file_bytes = info.st_size;
    FileHeader header;
    FileTrailer trailer;
    const int64_t least =
        sizeof(header) + sizeof(BlockHeader) + sizeof(trailer);
    if (file_bytes < static_cast<int64_t>(sizeof(header))) {
      return Bad("it has " + std::to_string(file_bytes) +
                 " bytes, less than a header");
    }
    Status status = ReadAt(handle.get(), path, 0, &header, sizeof(header));
    if (!status.ok()) return status;
    if (!SameBytes(header.magic, kFileMagic, sizeof(header.magic))) {
      return Status::DataLoss("'" + path + "' is not a file of a table");
    }
    if (header.crc != Crc32c(0, &header, offsetof(FileHeader, crc))) {
      return Bad("checksum of its header");
    }
    if (header.version < 1 || header.version > Manifest::kVersion) {
      return Status::DataLoss("'" + path + "' has format version " +
                              std::to_string(header.version) +
                              ", but this program reads up to " +
                              std::to_string(Manifest::kVersion));
    }
    if (file_bytes < least) return Bad("it is truncated");
    status = ReadAt(handle.get(), path, file_bytes - sizeof(trailer), &trailer,
                    sizeof(trailer));
    if (!status.ok()) return status;
    if (!SameBytes(trailer.magic, kEndMagic, sizeof(trailer.magic)) ||
        trailer.crc != Crc32c(0, &trailer, offsetof(FileTrailer, crc))) {
      return Bad("it is truncated, or its end is overwritten");
    }
    if (trailer.file_bytes != static_cast<uint64_t>(file_bytes) ||
        trailer.manifest_offset < sizeof(FileHeader) ||
        trailer.manifest_offset + sizeof(BlockHeader) + sizeof(trailer) >
            static_cast<uint64_t>(file_bytes)) {
      return Bad("it has " + std::to_string(file_bytes) + " bytes, not " +
                 std::to_string(trailer.file_bytes));
    }
    manifest_offset = static_cast<int64_t>(trailer.manifest_offset);
    BlockPlace place;
    status = ReadHeader(manifest_offset, file_bytes - sizeof(trailer), &place);
    if (!status.ok()) return status;
    PayloadBuffer buffer;
    char* const payload = buffer.Get(place.bytes);
    if (payload == nullptr) return NoMemory(place);
    const std::vector<Span<char>> pieces = {{payload, place.bytes}};
    status = ReadPayload(place, pieces);
    if (!status.ok()) return status;
    const uint32_t crc = place.crc;
    if (place.kind != BlockKind::kManifest || crc != trailer.manifest_crc ||
        place.begin + place.bytes !=
            file_bytes - static_cast<int64_t>(sizeof(trailer))) {
      return Bad("its manifest");
    }
    status =
        Manifest::Decode(std::string(payload, static_cast<size_t>(place.bytes)),
                         "'" + path + "'", &manifest);
    if (!status.ok()) return status;
    if (manifest.content != std::string(header.content, 16)) {
      return Bad("its manifest is of another file");
    }
    if (expected != nullptr && (expected->content != manifest.content ||
                                expected->manifest_crc != crc)) {
      return Status::DataLoss("'" + path +
                              "' is not the file that the checkpoint was "
                              "saved with: expected content " +
                              expected->content + ", got " + manifest.content);
    }
    return Status::Ok();
  }

  Status NoMemory(const BlockPlace& place) const {
    return Status::ResourceExhausted("no memory to read a block of " +
                                     std::to_string(place.bytes) +
                                     " bytes of '" + path + "'");
  }

  static std::string BlockAt(int64_t offset) {
    return "block at byte " + std::to_string(offset);
  }

  Status ReadHeader(int64_t offset, int64_t end, BlockPlace* place) const {
    BlockHeader header;
    if (offset + static_cast<int64_t>(sizeof(header)) > end) {
      return Bad("its " + BlockAt(offset) + " is not whole");
    }
    const Status status =
        ReadAt(handle.get(), path, offset, &header, sizeof(header));
    if (!status.ok()) return status;
    if (header.magic != kBlockMagic ||
        header.crc != Crc32c(0, &header, offsetof(BlockHeader, crc))) {
      return Bad("checksum of the header of its " + BlockAt(offset));
    }
    place->begin = offset + static_cast<int64_t>(sizeof(header));
    if (header.bytes > kMaxPayload ||
        place->begin + static_cast<int64_t>(header.bytes) > end) {
      return Bad("its " + BlockAt(offset) + " is not whole");
    }
    place->kind = static_cast<BlockKind>(header.kind);
    place->size = static_cast<int64_t>(header.size);
    place->bytes = static_cast<int64_t>(header.bytes);
    place->crc = header.payload_crc;
    return Status::Ok();
  }

  // Into pieces of as many bytes in all.
  Status ReadPayload(const BlockPlace& place,
                     const std::vector<Span<char>>& pieces) const {
    const Status status = ReadAt(handle.get(), path, place.begin, pieces);
    if (!status.ok()) return status;
    uint32_t crc = 0;
    for (const Span<char>& piece : pieces) {
      crc = Crc32c(crc, piece.data(), static_cast<size_t>(piece.size()));
    }
    if (crc == place.crc) return Status::Ok();
    return Bad("checksum of its " + BlockAt(place.begin - sizeof(BlockHeader)));
  }

  // Where the columns of a block begin in its payload, and the payload's end.
  Status Divide(const BlockPlace& place, std::vector<int64_t>* begins) const {
    const auto columns = manifest.columns.find(place.kind);
    if (columns == manifest.columns.end()) {
      return Bad("a block of kind " +
                 std::to_string(static_cast<uint32_t>(place.kind)) +
                 ", which its manifest does not know");
    }
    int64_t at = 0;
    begins->clear();
    for (const Column& column : columns->second) {
      begins->push_back(at);
      if (place.size < 0 || place.size > place.bytes ||
          column.element_bytes() > place.bytes + 1) {
        return Bad("a block whose size is not that of its columns");
      }
      at += Aligned(place.size * column.element_bytes());
      if (at > place.bytes) break;
    }
    if (at != place.bytes) {
      return Bad("a block whose size is not that of its columns");
    }
    begins->push_back(at);
    return Status::Ok();
  }

  // Reads a block as planned; what the plan does not place goes to `buffer`.
  Status ReadBlock(const BlockPlace& place, const std::vector<int64_t>& begins,
                   const BlockPlan& plan, PayloadBuffer* buffer,
                   Block* block) const {
    int64_t placed_begin = place.bytes;
    int64_t placed_bytes = 0;
    if (plan.column >= 0) {
      placed_begin = begins[plan.column];
      for (const Span<char>& piece : plan.pieces) placed_bytes += piece.size();
    }
    // So much less that columns are aligned as they are in the file.
    const int64_t less = placed_bytes / kColumnAlignment * kColumnAlignment;
    char* const payload = buffer->Get(place.bytes - less);
    if (payload == nullptr) return NoMemory(place);
    std::vector<Span<char>> pieces = {{payload, placed_begin}};
    pieces.insert(pieces.end(), plan.pieces.begin(), plan.pieces.end());
    const int64_t rest = placed_begin + placed_bytes;
    pieces.push_back({payload + rest - less, place.bytes - rest});
    block->kind = place.kind;
    block->size = place.size;
    block->columns.clear();
    for (int c = 0; c + 1 < static_cast<int>(begins.size()); ++c) {
      const int64_t at =
          begins[c] <= placed_begin ? begins[c] : begins[c] - less;
      block->columns.push_back(c == plan.column ? nullptr : payload + at);
    }
    return ReadPayload(place, pieces);
  }
};

namespace {

constexpr int64_t kNoError = INT64_MAX;

// How far the threads that read a file are.
struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by the mutex, all of it.
  int64_t offset = sizeof(FileHeader);  // of the next block
  int64_t blocks = 0;                   // that somebody reads or has read
  uint32_t blocks_crc = 0;
  int64_t turns_given = 0;  // to blocks that are taken in turn
  int64_t turn = 0;
  // The first block in the file with which something is wrong.
  int64_t failed_block = kNoError;
  Status status;

  void Fail(int64_t block, const Status& why) {
    if (block >= failed_block) return;
    failed_block = block;
    status = why;
    changed.notify_all();
  }
};

}  // namespace

// One thread of Read.
class TableFileReader::Impl::Thread {
 public:
  Thread(const Impl& file, Progress* progress, BlockVisitor* visitor)
      : file_(file), progress_(progress), visitor_(visitor) {}

  void Run() {
    while (true) {
      std::unique_lock<std::mutex> lock(progress_->mutex);
      if (!Next()) return;
      // What waits for the disk would keep the others from their blocks.
      lock.unlock();
      Status status =
          file_.ReadBlock(place_, begins_, plan_, &buffer_, &block_);
      if (status.ok() && plan_.in_turn) {
        lock.lock();
        progress_->changed.wait(lock, [this] {
          return progress_->turn == turn_ || progress_->failed_block < number_;
        });
        if (progress_->failed_block < number_) return;
        lock.unlock();
        status = visitor_->Take(block_);
        lock.lock();
        ++progress_->turn;
        if (!status.ok()) progress_->Fail(number_, status);
        progress_->changed.notify_all();
        lock.unlock();
      }
      if (status.ok()) status = visitor_->Use(block_);
      if (status.ok()) continue;
      lock.lock();
      progress_->Fail(number_, status);
    }
  }

 private:
  // Chooses the next block, if there is one. For the holder of the mutex.
  bool Next() {
    Progress& progress = *progress_;
    if (progress.failed_block != kNoError) return false;
    if (progress.offset >= file_.manifest_offset) return false;
    number_ = progress.blocks++;
    plan_ = BlockPlan{};
    Status status =
        file_.ReadHeader(progress.offset, file_.manifest_offset, &place_);
    if (status.ok()) status = file_.Divide(place_, &begins_);
    if (status.ok()) status = visitor_->Place(place_.kind, place_.size, &plan_);
    if (!status.ok()) {
      progress.Fail(number_, status);
      return false;
    }
    progress.offset = place_.begin + place_.bytes;
    progress.blocks_crc =
        Crc32c(progress.blocks_crc, &place_.crc, sizeof(place_.crc));
    if (plan_.in_turn) turn_ = progress.turns_given++;
    return true;
  }

  const Impl& file_;
  Progress* const progress_;
  BlockVisitor* const visitor_;
  // Of the block in hand.
  int64_t number_ = 0;
  int64_t turn_ = 0;
  BlockPlace place_;
  std::vector<int64_t> begins_;
  BlockPlan plan_;
  PayloadBuffer buffer_;
  Block block_;
};

TableFileReader::TableFileReader(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
TableFileReader::~TableFileReader() = default;

Status TableFileReader::Create(const std::string& path,
                               const SavedFile* expected,
                               std::unique_ptr<TableFileReader>* reader) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  const Status status = impl->Open(expected);
  if (!status.ok()) return status;
  reader->reset(new TableFileReader(std::move(impl)));
  return Status::Ok();
}

const Manifest& TableFileReader::manifest() const { return impl_->manifest; }

int64_t TableFileReader::most_rows() const {
  int64_t bytes = 0;
  const auto columns = impl_->manifest.columns.find(BlockKind::kRows);
  if (columns == impl_->manifest.columns.end()) return 0;
  for (const Column& column : columns->second) bytes += column.element_bytes();
  return std::min(impl_->manifest.rows,
                  impl_->file_bytes / std::max<int64_t>(bytes, 1));
}

int TableFileReader::Threads(int threads) const {
  if (threads > 0) return threads;
  const int64_t processors = std::thread::hardware_concurrency();
  const int64_t busy = impl_->file_bytes / kBytesPerThread;
  return static_cast<int>(
      std::max<int64_t>(1, std::min({processors, busy, int64_t{kMaxThreads}})));
}

Status TableFileReader::Read(const std::vector<BlockVisitor*>& visitors) {
  // The kernel reads ahead by itself, faster than if it is told what will be
  // needed.
  posix_fadvise(impl_->handle.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  Progress progress;
  std::vector<std::thread> others;
  for (size_t i = 1; i < visitors.size(); ++i) {
    others.emplace_back([this, &progress, visitor = visitors[i]] {
      Impl::Thread(*impl_, &progress, visitor).Run();
    });
  }
  Impl::Thread(*impl_, &progress, visitors[0]).Run();
  for (std::thread& other : others) other.join();
  if (!progress.status.ok()) return progress.status;
  if (progress.blocks != impl_->manifest.blocks ||
      progress.blocks_crc != impl_->manifest.blocks_crc) {
    return impl_->Bad("its blocks are not those of its manifest");
  }
  return Status::Ok();
}

Status TableFileReader::Verify(int threads) {
  std::vector<BlockVisitor> visitors(Threads(threads));
  std::vector<BlockVisitor*> pointers;
  for (BlockVisitor& visitor : visitors) pointers.push_back(&visitor);
  return Read(pointers);
}

}  // namespace mxrec
