// What a restore puts into a table, file by file and block by block.
#ifndef MXREC_SRC_TABLE_FILLER_H_
#define MXREC_SRC_TABLE_FILLER_H_

#include <atomic>
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "mxrec/saving.h"
#include "table_impl.h"

namespace mxrec {

// Puts the keys of files into a table that is held exclusively, newest file
// first: a key that is there already, or that a newer file calls evicted, is
// stale. Rows are the same whatever the number of threads.
class TableImpl::Filler {
 public:
  Filler(TableImpl* table, const RestoreRequest& request)
      : table_(table),
        request_(request),
        initials_(table->is_fixed() ? request.slots.initial_values
                                    : table->slots_.initial_values),
        stride_(table->options_.dim *
                (1 + static_cast<int64_t>(initials_.size()))) {}

  Status Add(TableFileReader* reader);

  // There are older files, which may say something else of candidates.
  void KeepHistory() { keeps_history_ = true; }
  bool has_times() const { return times_column_ >= 0; }
  int64_t added() const { return added_; }
  int64_t skipped() const { return skipped_; }

 private:
  class Thread;

  Status NoMemoryToIndex() const {
    return Status::ResourceExhausted(
        "table '" + table_->options_.name + "': no memory to index more than " +
        std::to_string(added_.load(std::memory_order_relaxed)) + " keys");
  }
  Status Insert(Span<const Key> keys, std::vector<int64_t>* taken,
                std::vector<RowIndex>* rows);
  void InsertRow(Shard* shard, uint64_t hash, Key key, RowIndex row);
  Status AddHistory(const Block& block);
  void Finish(const Block& block, Span<const int64_t> taken,
              Span<const RowIndex> rows);

  TableImpl* const table_;
  const RestoreRequest& request_;
  // Slots of rows as they are stored, and values of such a row.
  const std::vector<float>& initials_;
  const int64_t stride_;
  bool keeps_history_ = false;
  bool is_first_ = true;
  std::unordered_set<Key> evicted_;
  std::unordered_set<Key> settled_;  // candidates or none, by a newer file

  // Of the file that is being read.
  int keys_column_ = 0;
  int counts_column_ = -1;
  int times_column_ = -1;
  int rows_column_ = 0;
  int64_t file_stride_ = 0;
  int64_t copied_ = 0;     // values of a row that come from the file
  bool in_place_ = false;  // rows are read to where they stay
  std::vector<Key> file_evicted_;
  std::vector<Key> file_history_;

  std::atomic<int64_t> added_{0};
  int64_t skipped_ = 0;
};

}  // namespace mxrec

#endif  // MXREC_SRC_TABLE_FILLER_H_
