#include <algorithm>
#include <array>

#include "first_error.h"
#include "row_math.h"
#include "table_impl.h"

namespace mxrec {
namespace {

// Row pointers that a gather resolves at a time. Rows of one cache line or two
// are fetched when they are; the copying itself fetches longer ones.
constexpr int64_t kRowsPerBlock = 256;
constexpr int64_t kShortRowsPerBlock = 64;
constexpr int kShortRow = 32;  // floats

}  // namespace

Status TableImpl::AddressError(Address address, int64_t position) const {
  const RowIndex row = RowOf(address);
  const char* reason = "its row was evicted";
  if (NonceOf(address) != nonce_) {
    reason = "it was not handed out by this table";
  } else if (row >= rows_->capacity() ||
             GenerationOf(address) >= rows_->GenerationOf(row)) {
    reason = "it names no row";
  }
  return Status::InvalidArgument(
      "table '" + options_.name + "': illegal address " +
      std::to_string(address) + " at position " + std::to_string(position) +
      ": " + reason +
      "; an address is valid only in the process and for the table that "
      "handed it out");
}

Status TableImpl::Gather(Span<const Address> addresses,
                         const float* default_row, float* out,
                         const Parallel& parallel) const {
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  if (is_fixed()) return WrongKind("a gather by address");
  const StepClock::Hold step(StepsToWaitFor());
  SharedLock row_content(rows_lock_);
  const int dim = options_.dim;
  const bool is_short = dim <= kShortRow;
  const int64_t block_rows = is_short ? kShortRowsPerBlock : kRowsPerBlock;
  const RowMath& math = BestRowMath();
  const int64_t capacity = rows_->capacity();
  FirstError error;
  parallel.For(
      addresses.size(), kValidateCost + dim, [&](int64_t begin, int64_t end) {
        // Rows of the next block are on their way while one is copied.
        using Block = std::array<const float*, kRowsPerBlock>;
        Block blocks[2];
        const RowAccess access = *rows_;
        const auto resolve = [&](int64_t first, Block* rows) {
          const int64_t n = std::min(block_rows, end - first);
          for (int64_t i = 0; i < n; ++i) {
            const int64_t ahead = first + i + kVisibleAhead;
            if (ahead < end)
              PrefetchVisible(addresses[ahead], access, capacity);
            const Address address = addresses[first + i];
            if (address == kNoRow) {
              (*rows)[i] = nullptr;
            } else if (IsLegal(address, access, capacity)) {
              (*rows)[i] = access.Row(RowOf(address));
              if (is_short) __builtin_prefetch((*rows)[i], 0, 3);
            } else {
              error.Report(first + i);
              return false;
            }
          }
          return true;
        };
        if (!resolve(begin, &blocks[0])) return;
        int current = 0;
        for (int64_t first = begin; first < end; first += block_rows) {
          const int64_t next = first + block_rows;
          if (next < end && !resolve(next, &blocks[1 - current])) return;
          math.gather(blocks[current].data(), std::min(next, end) - first, dim,
                      default_row, out + first * dim);
          current = 1 - current;
        }
      });
  if (!error.any()) return Status::Ok();
  return AddressError(addresses[error.position()], error.position());
}

Status TableImpl::Export(
    int64_t chunk_rows,
    const std::function<Status(const ExportChunk&)>& visit) const {
  if (chunk_rows < 1) {
    return Status::InvalidArgument("chunk_rows must be positive, got " +
                                   std::to_string(chunk_rows));
  }
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return ReleasedError();
  // Training stands still, so that all is of one instant.
  UniqueLock inserts(inserts_lock_);
  SharedLock row_content(rows_lock_);
  const int64_t stride = rows_->stride();
  std::vector<Key> keys;
  std::vector<float> rows;
  std::vector<int64_t> counts;
  std::vector<int64_t> times;
  const auto flush = [&]() {
    if (keys.empty()) return Status::Ok();
    const Status status = visit(ExportChunk{keys, rows, counts, times});
    keys.clear();
    rows.clear();
    counts.clear();
    times.clear();
    return status;
  };
  const int64_t end = std::min(rows_->capacity(), rows_->rows_allocated());
  for (int64_t r = 0; r < end; ++r) {
    const RowIndex row = static_cast<RowIndex>(r);
    if (!rows_->IsVisible(row)) continue;
    keys.push_back(*rows_->KeyOf(row));
    if (stride > 0) {
      const float* data = rows_->Row(row);
      rows.insert(rows.end(), data, data + stride);
    }
    if (options_.record_counts) {
      counts.push_back(rows_->CountOf(row)->load(std::memory_order_relaxed));
    }
    if (options_.admission.record_times) {
      times.push_back(rows_->TimeOf(row)->load(std::memory_order_relaxed));
    }
    if (static_cast<int64_t>(keys.size()) == chunk_rows) {
      const Status status = flush();
      if (!status.ok()) return status;
    }
  }
  return flush();
}

}  // namespace mxrec
