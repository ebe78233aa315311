#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "checkpoint_io.h"
#include "mxrec/checkpoint.h"
#include "table_file.h"

namespace mxrec {
namespace {

// Larger ones are not written; a damaged number must not make us allocate.
constexpr uint64_t kMaxPayload = uint64_t{1} << 31;
constexpr size_t kBlocksAhead = 4;
// That the kernel is asked to read before they are needed: more requests at a
// time than it makes by itself.
constexpr int64_t kBytesAhead = int64_t{16} << 20;

struct RawBlock {
  BlockKind kind = BlockKind::kRows;
  int64_t size = 0;
  int64_t bytes = 0;
  // Not a vector: it would be filled with zeros first.
  std::unique_ptr<char[]> payload;
  int64_t payload_capacity = 0;
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
    RawBlock block;
    int64_t offset = manifest_offset;
    uint32_t crc = 0;
    status = ReadBlock(&offset, file_bytes - sizeof(trailer), &block, &crc);
    if (!status.ok()) return status;
    if (block.kind != BlockKind::kManifest || crc != trailer.manifest_crc ||
        offset != file_bytes - static_cast<int64_t>(sizeof(trailer))) {
      return Bad("its manifest");
    }
    status = Manifest::Decode(
        std::string(block.payload.get(), static_cast<size_t>(block.bytes)),
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

  Status ReadBlock(int64_t* offset, int64_t end, RawBlock* block,
                   uint32_t* crc) {
    const std::string where = "block at byte " + std::to_string(*offset);
    BlockHeader header;
    if (*offset + static_cast<int64_t>(sizeof(header)) > end) {
      return Bad("its " + where + " is not whole");
    }
    Status status =
        ReadAt(handle.get(), path, *offset, &header, sizeof(header));
    if (!status.ok()) return status;
    if (header.magic != kBlockMagic ||
        header.crc != Crc32c(0, &header, offsetof(BlockHeader, crc))) {
      return Bad("checksum of the header of its " + where);
    }
    const int64_t begin = *offset + static_cast<int64_t>(sizeof(header));
    if (header.bytes > kMaxPayload ||
        begin + static_cast<int64_t>(header.bytes) > end) {
      return Bad("its " + where + " is not whole");
    }
    block->kind = static_cast<BlockKind>(header.kind);
    block->size = static_cast<int64_t>(header.size);
    block->bytes = static_cast<int64_t>(header.bytes);
    if (block->payload_capacity < block->bytes) {
      block->payload.reset(new char[static_cast<size_t>(block->bytes)]);
      block->payload_capacity = block->bytes;
    }
    status =
        ReadAt(handle.get(), path, begin, block->payload.get(), block->bytes);
    if (!status.ok()) return status;
    *crc = Crc32c(0, block->payload.get(), static_cast<size_t>(block->bytes));
    if (*crc != header.payload_crc) return Bad("checksum of its " + where);
    *offset = begin + block->bytes;
    return Status::Ok();
  }

  // The arrays of a block.
  Status Divide(const RawBlock& raw, Block* block) const {
    block->kind = raw.kind;
    block->size = raw.size;
    block->columns.clear();
    const auto columns = manifest.columns.find(raw.kind);
    if (columns == manifest.columns.end()) {
      return Bad("a block of kind " +
                 std::to_string(static_cast<uint32_t>(raw.kind)) +
                 ", which its manifest does not know");
    }
    int64_t at = 0;
    for (const Column& column : columns->second) {
      block->columns.push_back(raw.payload.get() + at);
      if (raw.size < 0 || raw.size > raw.bytes ||
          column.element_bytes() > raw.bytes + 1) {
        return Bad("a block whose size is not that of its columns");
      }
      at += Aligned(raw.size * column.element_bytes());
      if (at > raw.bytes) break;
    }
    if (at != raw.bytes) {
      return Bad("a block whose size is not that of its columns");
    }
    return Status::Ok();
  }
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

Status TableFileReader::Read(const std::function<Status(const Block&)>& visit) {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<RawBlock> ready;
  std::vector<RawBlock> spare;
  Status read_status;
  bool done = false;
  bool stop = false;
  Impl* const impl = impl_.get();

  std::thread ahead([&] {
    int64_t offset = sizeof(FileHeader);
    int64_t blocks = 0;
    uint32_t blocks_crc = 0;
    Status status;
    int64_t asked = 0;
    while (offset < impl->manifest_offset) {
      if (asked < impl->manifest_offset && offset + kBytesAhead / 2 > asked) {
        posix_fadvise(impl->handle.get(), asked, kBytesAhead,
                      POSIX_FADV_WILLNEED);
        asked += kBytesAhead;
      }
      RawBlock block;
      {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return stop || ready.size() < kBlocksAhead; });
        if (stop) return;
        if (!spare.empty()) {
          block = std::move(spare.back());
          spare.pop_back();
        }
      }
      uint32_t crc = 0;
      status = impl->ReadBlock(&offset, impl->manifest_offset, &block, &crc);
      if (!status.ok()) break;
      ++blocks;
      blocks_crc = Crc32c(blocks_crc, &crc, sizeof(crc));
      std::lock_guard<std::mutex> lock(mutex);
      ready.push_back(std::move(block));
      changed.notify_all();
    }
    if (status.ok() && (blocks != impl->manifest.blocks ||
                        blocks_crc != impl->manifest.blocks_crc)) {
      status = impl->Bad("its blocks are not those of its manifest");
    }
    std::lock_guard<std::mutex> lock(mutex);
    read_status = status;
    done = true;
    changed.notify_all();
  });

  Status status;
  while (true) {
    RawBlock raw;
    {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [&] { return done || !ready.empty(); });
      if (ready.empty()) break;
      raw = std::move(ready.front());
      ready.pop_front();
      changed.notify_all();
    }
    Block block;
    status = impl->Divide(raw, &block);
    if (status.ok()) status = visit(block);
    std::lock_guard<std::mutex> lock(mutex);
    spare.push_back(std::move(raw));
    if (status.ok()) continue;
    stop = true;
    changed.notify_all();
    break;
  }
  ahead.join();
  return status.ok() ? read_status : status;
}

Status TableFileReader::Verify() {
  return Read([](const Block&) { return Status::Ok(); });
}

}  // namespace mxrec
