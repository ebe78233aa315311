#include "mxrec/shared_counts.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "candidates.h"
#include "hash.h"

namespace mxrec {

struct SharedCounts::Impl {
  struct alignas(64) Shard {
    mutable std::mutex mutex;
    Candidates counts;
  };
  static constexpr int kShardBits = 6;

  Shard& ShardOf(uint64_t hash) { return shards[hash >> (64 - kShardBits)]; }

  std::array<Shard, 1 << kShardBits> shards;
};

SharedCounts::SharedCounts() : impl_(std::make_unique<Impl>()) {}
SharedCounts::~SharedCounts() = default;

int64_t SharedCounts::Add(Key key, int64_t count) {
  const uint64_t hash = HashKey(key);
  Impl::Shard& shard = impl_->ShardOf(hash);
  std::lock_guard<std::mutex> lock(shard.mutex);
  Candidates::Entry* entry = shard.counts.Find(hash, key);
  if (entry == nullptr) {
    if (count <= 0) return 0;
    entry = shard.counts.FindOrAdd(hash, key);
  }
  entry->count = std::max<int64_t>(0, SaturatingAdd(entry->count, count));
  if (entry->count != 0) return entry->count;
  shard.counts.Erase(entry);
  return 0;
}

int64_t SharedCounts::Get(Key key) const {
  const uint64_t hash = HashKey(key);
  Impl::Shard& shard = impl_->ShardOf(hash);
  std::lock_guard<std::mutex> lock(shard.mutex);
  const Candidates::Entry* entry = shard.counts.Find(hash, key);
  return entry == nullptr ? 0 : entry->count;
}

int64_t SharedCounts::bytes() const {
  int64_t bytes = 0;
  for (const Impl::Shard& shard : impl_->shards) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    bytes += shard.counts.bytes();
  }
  return bytes;
}

}  // namespace mxrec
