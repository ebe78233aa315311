#include "shard_index.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace mxrec {
namespace {

constexpr double kGrowth = 1.5;
constexpr double kMaxLoad = 0.84;

}  // namespace

ShardIndex::ShardIndex(int shard)
    : stagger_(std::pow(kGrowth, static_cast<double>(shard) / kShards)) {}

uint32_t ShardIndex::CountAtLevel(int level) const {
  const double count = std::ceil(stagger_ * std::pow(kGrowth, level));
  return std::max(static_cast<uint32_t>(level) + 1,
                  static_cast<uint32_t>(count));
}

void ShardIndex::Insert(uint64_t hash, RowIndex row) {
  uint32_t at = Home(hash);
  while (true) {
    Bucket& bucket = buckets_[at];
    const uint32_t empty = Match(bucket, 0);
    if (empty != 0) {
      const int slot = __builtin_ctz(empty);
      bucket.tags[slot] = TagOf(hash);
      bucket.rows[slot] = row;
      ++size_;
      return;
    }
    ++bucket.passed;
    at = Next(at);
  }
}

void ShardIndex::Erase(uint64_t hash, RowIndex row) {
  const uint8_t tag = TagOf(hash);
  for (uint32_t at = Home(hash);; at = Next(at)) {
    Bucket& bucket = buckets_[at];
    for (uint32_t match = Match(bucket, tag); match != 0; match &= match - 1) {
      const int slot = __builtin_ctz(match);
      if (bucket.rows[slot] != row) continue;
      bucket.tags[slot] = 0;
      --size_;
      return;
    }
    --bucket.passed;
  }
}

// A single bucket may be filled; more of them keep the probes short.
int64_t ShardIndex::LimitOf(uint32_t count) {
  return count == 1 ? kSlots : static_cast<int64_t>(count * kSlots * kMaxLoad);
}

void ShardIndex::Prepare(int64_t keys) {
  if (count_ != 0 || keys <= kSlots) return;
  int level = 0;
  while (LimitOf(CountAtLevel(level)) < keys) ++level;
  const uint32_t count = CountAtLevel(level);
  void* const fresh =
      std::aligned_alloc(sizeof(Bucket), count * sizeof(Bucket));
  if (fresh == nullptr) return;
  std::memset(fresh, 0, count * sizeof(Bucket));
  buckets_.reset(static_cast<Bucket*>(fresh));
  count_ = count;
  level_ = level;
  limit_ = LimitOf(count);
}

bool ShardIndex::Grow(const RowAccess& rows) {
  const uint32_t new_count = CountAtLevel(level_ + (count_ == 0 ? 0 : 1));
  Bucket* fresh = static_cast<Bucket*>(
      std::aligned_alloc(sizeof(Bucket), new_count * sizeof(Bucket)));
  if (fresh == nullptr) return false;
  std::memset(static_cast<void*>(fresh), 0, new_count * sizeof(Bucket));
  const auto old =
      std::exchange(buckets_, std::unique_ptr<Bucket[], FreeDeleter>(fresh));
  const uint32_t old_count = std::exchange(count_, new_count);
  if (old_count != 0) ++level_;
  limit_ = LimitOf(new_count);
  size_ = 0;
  constexpr uint32_t kAhead = 4;
  for (uint32_t b = 0; b < old_count; ++b) {
    if (b + kAhead < old_count) {
      for (int slot = 0; slot < kSlots; ++slot) {
        if (old[b + kAhead].tags[slot] != 0) {
          __builtin_prefetch(rows.KeyOf(old[b + kAhead].rows[slot]), 0, 3);
        }
      }
    }
    for (int slot = 0; slot < kSlots; ++slot) {
      if (old[b].tags[slot] == 0) continue;
      Insert(HashKey(*rows.KeyOf(old[b].rows[slot])), old[b].rows[slot]);
    }
  }
  return true;
}

}  // namespace mxrec
