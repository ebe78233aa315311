// Files of saved tables. See docs/checkpoint-format.md.
#ifndef MXREC_CHECKPOINT_H_
#define MXREC_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mxrec/address.h"
#include "mxrec/span.h"
#include "mxrec/status.h"

namespace mxrec {

// An array of a block: `width` values of `dtype` per element.
struct Column {
  std::string name;   // "keys", "counts", "rows", ...
  std::string dtype;  // "int64", "float32"
  int64_t width = 1;

  int64_t element_bytes() const {
    return width * (dtype == "float32" || dtype == "int32" ? 4 : 8);
  }
};

// What the elements of a block are.
enum class BlockKind : uint32_t {
  kRows = 1,     // keys that the table holds, with their rows
  kEvicted = 2,  // keys that the table no longer holds, of a delta
  kHistory = 3,  // keys that are counted, but not admitted yet
  kManifest = 4,
};

// A file that a saved state consists of.
struct SavedFile {
  std::string suffix;   // the file's name behind the checkpoint's prefix
  std::string content;  // id of the content, also in the file's header
  uint32_t manifest_crc = 0;
};

// The count, in a delta, of a key that is no candidate for admission any more.
constexpr int64_t kNoCandidate = -1;

// What a file says of itself, as lines of text `name=value`.
struct Manifest {
  static constexpr int kVersion = 1;

  std::string table;
  std::string key_dtype = "int64";
  int64_t dim = 0;
  std::string optimizer;             // whose slots the rows have; or none
  std::vector<float> slot_initials;  // one per slot
  int64_t steps = 0;                 // of the optimizer that owns the slots
  int64_t updates = 0;               // of any optimizer
  std::string content;               // id of this file's content
  std::string checkpoint;            // last part of its checkpoint's prefix
  // Of the files for one table and prefix, later ones have higher numbers; and
  // what tells the checkpoint's index from others, as it was before this file.
  int64_t sequence = 0;
  std::string index_before;
  bool is_delta = false;  // else it is full
  int64_t rows = 0;       // in this file
  int64_t evicted = 0;
  int64_t history = 0;
  int64_t blocks = 0;       // before that of the manifest
  uint32_t blocks_crc = 0;  // of the blocks' checksums, in order
  int64_t size = 0;         // keys that the table held
  std::map<BlockKind, std::vector<Column>> columns;
  // The files before this one that a delta builds on, the full one first.
  std::vector<SavedFile> base;
  // Settings of the table and the like: seed, initializer, admission.
  std::map<std::string, std::string> notes;

  int64_t stride() const {
    return dim * (1 + static_cast<int64_t>(slot_initials.size()));
  }
  // The place of a column in blocks of a kind, -1 if they have none.
  int ColumnOf(BlockKind kind, const char* name) const;
  std::string Encode() const;
  // DataLoss, naming `source`, for text that is no manifest or is of a later
  // version.
  static Status Decode(const std::string& text, const std::string& source,
                       Manifest* manifest);
};

// What a checkpoint keeps of a saved table: the manifest and the files, the one
// it describes last.
struct SavedTable {
  Manifest manifest;
  std::vector<SavedFile> files;

  std::string Encode() const;
  static Status Decode(const std::string& text, const std::string& source,
                       SavedTable* saved);
};

// CRC-32C (Castagnoli) of `bytes` after `crc`.
uint32_t Crc32c(uint32_t crc, const void* data, size_t bytes);

// Elements of one kind on their way to a file. `capacity` is given by the
// writer; who fills it says how many there are.
class BlockBuffer {
 public:
  BlockBuffer(const std::vector<Column>& columns, int64_t capacity);
  int64_t capacity() const { return capacity_; }
  template <typename T>
  T* column(int c) {
    return reinterpret_cast<T*>(data_.get() + offsets_[c]);
  }
  const char* bytes_of(int c) const { return data_.get() + offsets_[c]; }
  const std::vector<Column>& columns() const { return columns_; }
  BlockKind kind = BlockKind::kRows;
  int64_t size = 0;

 private:
  const std::vector<Column> columns_;
  const int64_t capacity_;
  std::vector<int64_t> offsets_;
  std::unique_ptr<char[]> data_;
};

// Writes one file: blocks by a thread of its own while others are filled, and
// last the manifest. The file has a temporary name until all of it is on disk.
//
// Thread safety: Take, Submit, WriteBlock and status from any thread.
class TableFileWriter {
 public:
  // `prefix` is that of the checkpoint; the file's name is chosen. At most
  // about `buffer_bytes` are kept in buffers.
  static Status Create(const std::string& prefix, int file_number,
                       const Manifest& manifest, int64_t buffer_bytes,
                       std::unique_ptr<TableFileWriter>* writer);
  // Removes what is not finished.
  ~TableFileWriter();

  // An empty buffer, waiting for one that has been written; null after a
  // failure. Give it back with Submit, written if it has elements.
  std::unique_ptr<BlockBuffer> Take();
  // For who is in no hurry: leaves some to those who are.
  std::unique_ptr<BlockBuffer> TakeUnhurried();
  // Without waiting: null if there is none. After a failure that is for ever.
  std::unique_ptr<BlockBuffer> TryTake();
  // Until TryTake may give one, or has failed.
  void WaitForBuffer();
  void Submit(std::unique_ptr<BlockBuffer> buffer);
  // A block of any columns; waits until it is written.
  Status WriteBlock(BlockBuffer* buffer);
  // What has gone wrong so far.
  Status status() const;
  // Completes the file: flushed to disk and renamed. `manifest` is completed
  // with what was written.
  Status Finish(Manifest* manifest, SavedFile* file);

  const std::string& path() const;  // that the file will have
  const std::string& content() const;

 private:
  struct Impl;
  explicit TableFileWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A block as read, checked.
struct Block {
  BlockKind kind = BlockKind::kRows;
  int64_t size = 0;
  // In the order of the manifest; null for what was read elsewhere.
  std::vector<const char*> columns;

  template <typename T>
  const T* column(int c) const {
    return reinterpret_cast<const T*>(columns[c]);
  }
};

// How a visitor wants a block.
struct BlockPlan {
  // A column whose values are read into `pieces`, which hold just as many
  // bytes, and not into a buffer.
  int column = -1;
  std::vector<Span<char>> pieces;
  // Take is to be called.
  bool in_turn = false;
};

// What becomes of the blocks of a file. Each thread that reads has a visitor.
class BlockVisitor {
 public:
  virtual ~BlockVisitor() = default;
  // Before the block is read; for all blocks in the order of the file, and by
  // one visitor at a time.
  virtual Status Place(BlockKind /*kind*/, int64_t /*size*/,
                       BlockPlan* /*plan*/) {
    return Status::Ok();
  }
  // Of blocks whose plan says so, when they are read and known to be whole: in
  // the order of the file, by one visitor at a time.
  virtual Status Take(const Block& /*block*/) { return Status::Ok(); }
  // Of every block that is read and known to be whole, and after Take; other
  // visitors do the same with other blocks.
  virtual Status Use(const Block& /*block*/) { return Status::Ok(); }
};

// Reads one file. Create checks header, trailer and manifest; reading checks
// each block, and at the end that none is missing.
//
// Thread safety: none. Reading starts threads of its own.
class TableFileReader {
 public:
  // `expected` may be null; else the file must be that one.
  static Status Create(const std::string& path, const SavedFile* expected,
                       std::unique_ptr<TableFileReader>* reader);
  ~TableFileReader();

  const Manifest& manifest() const;
  // No more than the manifest says, nor than the file has room for.
  int64_t most_rows() const;
  // `threads`; if that is 0, as many as there are processors and as are worth
  // starting for the file.
  int Threads(int threads) const;
  // Reads the file once, with a thread for each visitor, of which the caller's
  // is the first. Ends with what is first in the file of all that goes wrong:
  // DataLoss, naming the file, at a block that is not whole, or what a visitor
  // returned.
  Status Read(const std::vector<BlockVisitor*>& visitors);
  // Whether it could be read.
  Status Verify(int threads);

 private:
  struct Impl;
  explicit TableFileReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A suffix of files of tables matches TensorFlow's pattern of data files, so
// that whoever deletes a checkpoint deletes them with it.
bool IsTableFileSuffix(const std::string& suffix);

// Completes what a manifest says of the checkpoint `prefix`, before a file is
// made, and removes files of tables in its directory that nothing will read:
// those whose checkpoint was never completed (its writer having died), and
// those that a later save to the same prefix has replaced.
Status PrepareFile(const std::string& prefix, int file_number,
                   Manifest* manifest);

// Gives the checkpoint `to` files of the checkpoint `from` as its own, without
// copying: both keep them if the other is deleted. Not linked if a file is gone
// or the file system cannot; then a delta cannot build on them.
Status LinkFiles(const std::string& from, const std::string& to,
                 const std::vector<SavedFile>& files, bool* linked);

}  // namespace mxrec

#endif  // MXREC_CHECKPOINT_H_
