#include "table_filler.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "hash.h"

namespace mxrec {
namespace {

constexpr int64_t kAhead = 16;  // keys whose bucket is fetched

}  // namespace

// What one thread does with blocks. Most tables come from one file, all of
// whose keys are new: their rows are read to where they stay, and inserted in
// any order. Else rows are given, in the order of the file, to those that are
// wanted.
class TableImpl::Filler::Thread final : public BlockVisitor {
 public:
  explicit Thread(Filler* filler) : filler_(filler), table_(filler->table_) {}

  Status Place(BlockKind kind, int64_t size, BlockPlan* plan) override {
    plan->in_turn = kind != BlockKind::kRows || !filler_->in_place_;
    if (plan->in_turn || size == 0) return Status::Ok();
    const Status status =
        table_->rows_->Allocate(static_cast<uint32_t>(size), &first_row_);
    if (!status.ok()) return status;
    plan->column = filler_->rows_column_;
    const RowAccess& access = *table_->rows_;
    const int64_t row_bytes =
        filler_->stride_ * static_cast<int64_t>(sizeof(float));
    for (int64_t i = 0; i < size;) {
      const RowIndex row = first_row_ + static_cast<RowIndex>(i);
      const int64_t rows = std::min(size - i, access.RowsInARow(row));
      plan->pieces.push_back(
          {reinterpret_cast<char*>(access.Row(row)), rows * row_bytes});
      i += rows;
    }
    return status;
  }

  Status Take(const Block& block) override {
    if (block.kind == BlockKind::kHistory) return filler_->AddHistory(block);
    if (block.kind == BlockKind::kEvicted) {
      const Key* keys = block.column<Key>(0);
      std::vector<Key>& evicted = filler_->file_evicted_;
      evicted.insert(evicted.end(), keys, keys + block.size);
      return Status::Ok();
    }
    if (block.kind != BlockKind::kRows) return Status::Ok();
    return filler_->Insert(
        {block.column<Key>(filler_->keys_column_), block.size}, &taken_,
        &rows_);
  }

  Status Use(const Block& block) override {
    if (block.kind != BlockKind::kRows) return Status::Ok();
    if (!filler_->in_place_) {
      Copy(block);
    } else {
      const Status status =
          InsertInPlace({block.column<Key>(filler_->keys_column_), block.size});
      if (!status.ok()) return status;
    }
    filler_->Finish(block, taken_, rows_);
    return Status::Ok();
  }

 private:
  Status InsertInPlace(Span<const Key> keys) {
    const RowAccess access = *table_->rows_;
    const auto shard_of = [this](uint64_t hash) {
      return table_->shards_[ShardOf(hash)].get();
    };
    taken_.clear();
    rows_.clear();
    for (int64_t i = 0; i < keys.size(); ++i) {
      if (i + kAhead < keys.size()) {
        const uint64_t ahead = HashKey(keys[i + kAhead]);
        shard_of(ahead)->index.PrefetchBucket(ahead);
      }
      const uint64_t hash = HashKey(keys[i]);
      Shard* const shard = shard_of(hash);
      const RowIndex row = first_row_ + static_cast<RowIndex>(i);
      *access.KeyOf(row) = keys[i];
      std::lock_guard<std::mutex> lock(shard->mutex);
      // A file has a key once; the row of a second one would be left unused.
      RowIndex other = 0;
      if (shard->index.Find(hash, keys[i], access, &other)) continue;
      if (!shard->index.Reserve(access)) return filler_->NoMemoryToIndex();
      filler_->InsertRow(shard, hash, keys[i], row);
      taken_.push_back(i);
      rows_.push_back(row);
    }
    return Status::Ok();
  }

  void Copy(const Block& block) {
    const RowAccess access = *table_->rows_;
    const bool fixed = table_->is_fixed();
    const int64_t dim = table_->options_.dim;
    const int64_t stride = filler_->stride_;
    const int64_t copied = filler_->copied_;
    const float* const from = block.column<float>(filler_->rows_column_);
    if (fixed) buffer_.resize(rows_.size() * stride);
    for (size_t i = 0; i < rows_.size(); ++i) {
      float* const to =
          fixed ? buffer_.data() + i * stride : access.Row(rows_[i]);
      std::memcpy(to, from + taken_[i] * filler_->file_stride_,
                  copied * sizeof(float));
      for (int64_t at = copied; at < stride; at += dim) {
        std::fill_n(to + at, dim, filler_->initials_[at / dim - 1]);
      }
    }
    if (fixed && !rows_.empty()) {
      filler_->request_.write_rows(rows_, buffer_.data());
    }
  }

  Filler* const filler_;
  TableImpl* const table_;
  RowIndex first_row_ = 0;  // of a block that is read in place
  // Of the keys that are taken: their positions in the block, and their rows.
  std::vector<int64_t> taken_;
  std::vector<RowIndex> rows_;
  std::vector<float> buffer_;
};

Status TableImpl::Filler::Add(TableFileReader* reader) {
  const Manifest& manifest = reader->manifest();
  keys_column_ = manifest.ColumnOf(BlockKind::kRows, "keys");
  counts_column_ = manifest.ColumnOf(BlockKind::kRows, "counts");
  times_column_ = manifest.ColumnOf(BlockKind::kRows, "times");
  rows_column_ = manifest.ColumnOf(BlockKind::kRows, "rows");
  file_stride_ = manifest.stride();
  // Slots of the file go along only if they are those of the table.
  copied_ = request_.with_slots && file_stride_ == stride_
                ? stride_
                : table_->options_.dim;
  in_place_ = is_first_ && request_.parts == 1 && !table_->is_fixed() &&
              copied_ == stride_ && file_stride_ == stride_;
  is_first_ = false;
  std::vector<Thread> threads(
      static_cast<size_t>(reader->Threads(request_.threads)), Thread(this));
  std::vector<BlockVisitor*> visitors;
  for (Thread& thread : threads) visitors.push_back(&thread);
  const Status status = reader->Read(visitors);
  evicted_.insert(file_evicted_.begin(), file_evicted_.end());
  settled_.insert(file_history_.begin(), file_history_.end());
  file_evicted_.clear();
  file_history_.clear();
  return status;
}

// Gives rows to those of the keys that are wanted and missing; `taken` has
// their positions.
Status TableImpl::Filler::Insert(Span<const Key> keys,
                                 std::vector<int64_t>* taken,
                                 std::vector<RowIndex>* rows) {
  taken->clear();
  rows->clear();
  for (int64_t i = 0; i < keys.size(); ++i) {
    if (request_.parts > 1 &&
        PartOf(keys[i], request_.parts) != request_.part) {
      ++skipped_;
      continue;
    }
    if (!evicted_.empty() && evicted_.count(keys[i]) > 0) continue;
    taken->push_back(i);
  }
  const int64_t n = static_cast<int64_t>(taken->size());
  int64_t kept = 0;
  const auto shard_of = [&](int64_t i) -> std::pair<uint64_t, Shard*> {
    const uint64_t hash = HashKey(keys[(*taken)[i]]);
    return {hash, table_->shards_[ShardOf(hash)].get()};
  };
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      const auto ahead = shard_of(i + kAhead);
      ahead.second->index.PrefetchBucket(ahead.first);
    }
    const auto at = shard_of(i);
    const Key key = keys[(*taken)[i]];
    RowIndex row = 0;
    if (at.second->index.Find(at.first, key, *table_->rows_, &row)) continue;
    if (!at.second->index.Reserve(*table_->rows_)) return NoMemoryToIndex();
    const Status status = table_->rows_->Allocate(1, &row);
    if (!status.ok()) return status;
    *table_->rows_->KeyOf(row) = key;
    InsertRow(at.second, at.first, key, row);
    rows->push_back(row);
    (*taken)[kept++] = (*taken)[i];
  }
  taken->resize(kept);
  return Status::Ok();
}

// A key that is both, in whatever order, has its row.
void TableImpl::Filler::InsertRow(Shard* shard, uint64_t hash, Key key,
                                  RowIndex row) {
  shard->index.Insert(hash, row);
  Candidates::Entry* const entry = shard->candidates.Find(hash, key);
  if (entry == nullptr) return;
  table_->Uncount(key, entry->count);
  shard->candidates.Erase(entry);
}

Status TableImpl::Filler::AddHistory(const Block& block) {
  const auto& admission = table_->options_.admission;
  if (!admission.admits()) return Status::Ok();
  const Key* const keys = block.column<Key>(0);
  const int64_t* const counts = block.column<int64_t>(1);
  const int64_t* const times = block.column<int64_t>(2);
  for (int64_t i = 0; i < block.size; ++i) {
    const Key key = keys[i];
    if (request_.parts > 1 && PartOf(key, request_.parts) != request_.part) {
      continue;
    }
    if (keeps_history_) file_history_.push_back(key);
    if (evicted_.count(key) > 0 || settled_.count(key) > 0) continue;
    const uint64_t hash = HashKey(key);
    Shard* const shard = table_->shards_[ShardOf(hash)].get();
    // Rows may be put in place meanwhile.
    std::lock_guard<std::mutex> lock(shard->mutex);
    RowIndex row = 0;
    if (counts[i] < 0 || shard->index.Find(hash, key, *table_->rows_, &row)) {
      continue;
    }
    Candidates::Entry* const entry = shard->candidates.FindOrAdd(hash, key);
    entry->count = counts[i];
    entry->time = times[i];
    if (admission.shared_counts != nullptr) {
      admission.shared_counts->Add(key, counts[i]);
    }
  }
  return Status::Ok();
}

// All of the rows but their values, and makes them visible.
void TableImpl::Filler::Finish(const Block& block, Span<const int64_t> taken,
                               Span<const RowIndex> rows) {
  const RowAccess access = *table_->rows_;
  const AdmissionOptions& admission = table_->options_.admission;
  const Key* const keys = block.column<Key>(keys_column_);
  if (table_->options_.record_counts) {
    const int64_t* const counts =
        counts_column_ < 0 ? nullptr : block.column<int64_t>(counts_column_);
    for (int64_t i = 0; i < rows.size(); ++i) {
      const int64_t count = counts == nullptr ? 0 : counts[taken[i]];
      access.CountOf(rows[i])->store(count, std::memory_order_relaxed);
      if (admission.shared_counts != nullptr) {
        admission.shared_counts->Add(keys[taken[i]], count);
      }
    }
  }
  if (admission.record_times) {
    const int64_t* const times =
        times_column_ < 0 ? nullptr : block.column<int64_t>(times_column_);
    for (int64_t i = 0; i < rows.size(); ++i) {
      access.TimeOf(rows[i])->store(times == nullptr ? 0 : times[taken[i]],
                                    std::memory_order_relaxed);
    }
  }
  if (!table_->padding_keys_.empty()) {
    for (int64_t i = 0; i < rows.size(); ++i) {
      if (table_->padding_keys_.count(keys[taken[i]]) > 0) {
        access.Freeze(rows[i]);
      }
    }
  }
  if (table_->is_fixed()) {
    for (const RowIndex row : rows) access.SetInitialized(row);
  }
  access.MakeAllVisible(rows);
  added_.fetch_add(rows.size(), std::memory_order_relaxed);
}

}  // namespace mxrec
