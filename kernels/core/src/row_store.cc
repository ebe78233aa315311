#include "row_store.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace mxrec {
namespace {

constexpr int64_t kTargetSlabBytes = int64_t{4} << 20;
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kMetaAreaBytes = int64_t{8} << 20;
constexpr int kMinSlabShift = 6;  // one word of visible bits
constexpr int kMaxSlabShift = 16;
constexpr int64_t kMaxRows = int64_t{1} << kRowBits;

// Zeroed, not resident until touched; null on failure. Large areas start at a
// huge-page boundary, since only whole huge pages can be used as such.
void* Map(int64_t bytes, bool huge_pages) {
  const int64_t padded = huge_pages ? bytes + kHugePage : bytes;
  void* area =
      mmap(nullptr, static_cast<size_t>(padded), PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) return nullptr;
  if (!huge_pages) return area;
  const uintptr_t start = reinterpret_cast<uintptr_t>(area);
  const uintptr_t aligned = (start + kHugePage - 1) & ~uintptr_t(kHugePage - 1);
  const uintptr_t page_end = (aligned + bytes + 4095) & ~uintptr_t{4095};
  if (aligned > start) munmap(area, aligned - start);
  if (start + padded > page_end) {
    munmap(reinterpret_cast<void*>(page_end), start + padded - page_end);
  }
  madvise(reinterpret_cast<void*>(aligned), static_cast<size_t>(bytes),
          MADV_HUGEPAGE);
  return reinterpret_cast<void*>(aligned);
}

void Unmap(void* area, int64_t bytes) {
  if (area != nullptr) munmap(area, static_cast<size_t>(bytes));
}

// Makes an area resident. A system that cannot does so when it is used.
void Touch(void* start, int64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  const uintptr_t from = reinterpret_cast<uintptr_t>(start) & ~uintptr_t{4095};
  const uintptr_t to = reinterpret_cast<uintptr_t>(start) + bytes;
  madvise(reinterpret_cast<void*>(from), to - from, MADV_POPULATE_WRITE);
#else
  static_cast<void>(start);
  static_cast<void>(bytes);
#endif
}

int SlabShift(int dim) {
  const int64_t row_bytes = dim * static_cast<int64_t>(sizeof(float));
  int shift = kMinSlabShift;
  while (shift < kMaxSlabShift &&
         (row_bytes << (shift + 1)) <= kTargetSlabBytes) {
    ++shift;
  }
  return shift;
}

}  // namespace

RowStore::RowStore(std::string name, int dim, bool record_counts,
                   bool record_times, int64_t max_rows)
    : name_(std::move(name)),
      dim_(dim),
      record_counts_(record_counts),
      max_rows_(max_rows > 0 ? std::min(max_rows, kMaxRows) : kMaxRows),
      max_slabs_(kMaxRows >> SlabShift(dim)) {
  slab_shift_ = SlabShift(dim);
  slab_mask_ = (RowIndex{1} << slab_shift_) - 1;
  // Records do not straddle cache lines.
  const int words = 1 + (record_counts ? 1 : 0) + (record_times ? 1 : 0);
  key_shift_ = words == 1 ? 3 : words == 2 ? 4 : 5;
  time_place_ = record_times ? words - 1 : 0;
  stride_ = dim;
}

RowStore::~RowStore() {
  const uint32_t ready = slabs_ready_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < ready; ++i) {
    Unmap(slabs_[i].data, DataBytes(stride_));
    delete[] slabs_[i].generations.load(std::memory_order_relaxed);
  }
  for (const Area& area : meta_areas_) Unmap(area.start, area.bytes);
  Unmap(slabs_, max_slabs_ * static_cast<int64_t>(sizeof(Slab)));
}

Status RowStore::Init() {
  // The directory is as long as it can ever get, so that it never moves; only
  // the touched part of it is resident.
  slabs_ = static_cast<Slab*>(
      Map(max_slabs_ * static_cast<int64_t>(sizeof(Slab)), false));
  if (slabs_ == nullptr) {
    return Status::ResourceExhausted("table '" + name_ +
                                     "': no address space for its directory");
  }
  return Status::Ok();
}

// Bits and keys of a slab lie together, in this order.
int64_t RowStore::MetaBytes() const {
  return (BitBytes() + (slab_rows() << key_shift_) + 63) & ~int64_t{63};
}

// Several slabs share an area, so that their keys, which are read at random,
// lie on huge pages.
char* RowStore::TakeMeta(bool huge_pages) {
  if (meta_rest_bytes_ < MetaBytes()) {
    const int64_t bytes =
        huge_pages ? std::max(kMetaAreaBytes, MetaBytes()) : MetaBytes();
    void* const start = Map(bytes, huge_pages);
    if (start == nullptr) return nullptr;
    meta_areas_.push_back({start, bytes});
    meta_rest_ = static_cast<char*>(start);
    meta_rest_bytes_ = bytes;
  }
  char* const taken = meta_rest_;
  meta_rest_ += MetaBytes();
  meta_rest_bytes_ -= MetaBytes();
  return taken;
}

int64_t RowStore::bytes_beside_rows() const {
  return (rows_allocated() << key_shift_) + rows_allocated() * kBitKinds / 8 +
         generation_bytes_.load(std::memory_order_relaxed);
}

Status RowStore::Allocate(uint32_t count, RowIndex* first) {
  int64_t begin = next_.load(std::memory_order_relaxed);
  while (true) {
    const int64_t end = begin + count;
    if (end > max_rows_) {
      return Status::ResourceExhausted(
          max_rows_ == kMaxRows
              ? "table '" + name_ + "' holds " + std::to_string(begin) +
                    " rows, the most a table can have"
              : "table '" + name_ + "' is full: its capacity is " +
                    std::to_string(max_rows_) + " and it holds " +
                    std::to_string(begin) +
                    " keys; create it with a larger device_vocabulary_size, "
                    "or let it grow with init(use_dynamic_expansion=True)");
    }
    if (end > capacity()) {
      // Rows are counted only once they are there.
      const Status status = AddSlab(end);
      if (!status.ok()) return status;
      begin = next_.load(std::memory_order_relaxed);
    } else if (next_.compare_exchange_weak(begin, end,
                                           std::memory_order_relaxed)) {
      *first = static_cast<RowIndex>(begin);
      return Status::Ok();
    }
  }
}

Status RowStore::AddSlab(int64_t rows_needed) {
  std::lock_guard<std::mutex> lock(grow_mutex_);
  const uint32_t index = slabs_ready_.load(std::memory_order_relaxed);
  if (capacity() >= rows_needed) return Status::Ok();
  // The first slab has small pages, so that a small table stays small.
  const bool huge_pages = index > 0 && DataBytes(stride_) >= kHugePage;
  float* const data =
      stride_ > 0 ? static_cast<float*>(Map(DataBytes(stride_), huge_pages))
                  : nullptr;
  char* const meta =
      stride_ > 0 && data == nullptr ? nullptr : TakeMeta(huge_pages);
  if (meta == nullptr) {
    Unmap(data, DataBytes(stride_));
    return Status::ResourceExhausted(
        "table '" + name_ + "': the system gives no memory for rows " +
        std::to_string(capacity()) + " to " +
        std::to_string(capacity() + slab_rows()) + " (" +
        std::to_string(DataBytes(stride_) + MetaBytes()) + " bytes)");
  }
  // Zeroed memory is a valid state of the atomics.
  Slab& slab = slabs_[index];
  slab.data = data;
  slab.bits = reinterpret_cast<std::atomic<uint64_t>*>(meta);
  slab.keys = meta + BitBytes();
  slabs_ready_.store(index + 1, std::memory_order_release);
  return Status::Ok();
}

void RowStore::TouchAhead(int64_t count) {
  // Small pages cost little.
  if (stride_ == 0 || DataBytes(stride_) < kHugePage) return;
  const int64_t page_rows = std::max<int64_t>(
      kHugePage / (stride_ * static_cast<int64_t>(sizeof(float))), 1);
  // Shards take rows in runs, so that a call of few keys may take many. Never
  // more than there are, so that a small table stays small.
  const int64_t most = std::max(count, slab_rows());
  const auto wanted = [&] {
    const int64_t next = next_.load(std::memory_order_relaxed);
    return std::min(next + std::min(most, next), max_rows_);
  };
  if (touched_.load(std::memory_order_relaxed) >= wanted()) return;
  const std::unique_lock<std::mutex> lock(touch_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  int64_t row = std::max({touched_.load(std::memory_order_relaxed),
                          next_.load(std::memory_order_relaxed), slab_rows()});
  while (row < wanted()) {
    if (row >= capacity() && !AddSlab(row + 1).ok()) return;
    const Slab& slab = SlabOf(static_cast<RowIndex>(row));
    const int64_t at = row & slab_mask_;
    const int64_t rows = std::min(page_rows, slab_rows() - at);
    if (at == 0) Touch(slab.bits, MetaBytes());
    Touch(slab.data + at * stride_,
          rows * stride_ * static_cast<int64_t>(sizeof(float)));
    row += rows;
    touched_.store(row, std::memory_order_relaxed);
  }
}

Status RowStore::AddSlots(const std::vector<float>& initial_values) {
  const int new_stride =
      stride_ + dim_ * static_cast<int>(initial_values.size());
  const uint32_t ready = slabs_ready_.load(std::memory_order_acquire);
  const int64_t used = next_.load(std::memory_order_relaxed);
  std::vector<float*> widened(ready, nullptr);
  for (uint32_t i = 0; i < ready; ++i) {
    widened[i] = static_cast<float*>(Map(
        DataBytes(new_stride), i > 0 && DataBytes(new_stride) >= kHugePage));
    if (widened[i] == nullptr) {
      for (uint32_t j = 0; j < i; ++j) Unmap(widened[j], DataBytes(new_stride));
      return Status::ResourceExhausted(
          "table '" + name_ + "': no memory to add " +
          std::to_string(initial_values.size()) + " optimizer slots");
    }
  }
  for (uint32_t i = 0; i < ready; ++i) {
    const int64_t rows =
        std::min(slab_rows(), used - (static_cast<int64_t>(i) << slab_shift_));
    for (int64_t r = 0; r < rows; ++r) {
      float* to = widened[i] + r * new_stride;
      std::memcpy(to, slabs_[i].data + r * stride_,
                  static_cast<size_t>(stride_) * sizeof(float));
      for (size_t s = 0; s < initial_values.size(); ++s) {
        std::fill_n(to + stride_ + static_cast<int64_t>(s) * dim_, dim_,
                    initial_values[s]);
      }
    }
    Unmap(slabs_[i].data, DataBytes(stride_));
    slabs_[i].data = widened[i];
  }
  stride_ = new_stride;
  touched_.store(used, std::memory_order_relaxed);
  return Status::Ok();
}

bool RowStore::Renew(RowIndex row, bool may_wrap) {
  Slab& slab = SlabOf(row);
  std::atomic<uint16_t>* generations =
      slab.generations.load(std::memory_order_acquire);
  if (generations == nullptr) {
    auto* const fresh = new (std::nothrow) std::atomic<uint16_t>[slab_rows()]();
    if (fresh == nullptr) return false;
    // Another shard may be renewing a row of the slab.
    if (slab.generations.compare_exchange_strong(generations, fresh,
                                                 std::memory_order_acq_rel)) {
      generations = fresh;
      generation_bytes_.fetch_add(slab_rows() * sizeof(uint16_t),
                                  std::memory_order_relaxed);
    } else {
      delete[] fresh;
    }
  }
  std::atomic<uint16_t>& generation = generations[row & slab_mask_];
  const uint32_t next = generation.load(std::memory_order_relaxed) + 1u;
  if (next > kMaxGeneration && !may_wrap) return false;
  generation.store(static_cast<uint16_t>(next & kMaxGeneration),
                   std::memory_order_relaxed);
  for (const BitKind kind : {kInitialized, kFrozen, kLimbo}) {
    Word(kind, row)->fetch_and(~BitOf(row), std::memory_order_acq_rel);
  }
  Word(kStaleSlots, row)->fetch_or(BitOf(row), std::memory_order_relaxed);
  return true;
}

void RowStore::ForgetInitialized() const {
  const uint32_t ready = slabs_ready_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < ready; ++i) {
    std::atomic<uint64_t>* const words =
        slabs_[i].bits + kInitialized * words_per_kind();
    for (int64_t w = 0; w < words_per_kind(); ++w) {
      words[w].store(0, std::memory_order_relaxed);
    }
  }
}

}  // namespace mxrec
