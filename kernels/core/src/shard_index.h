// One shard of the key index: from a key's hash to its row.
#ifndef MXREC_SRC_SHARD_INDEX_H_
#define MXREC_SRC_SHARD_INDEX_H_

#include <emmintrin.h>

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "hash.h"
#include "mxrec/address.h"
#include "row_store.h"

namespace mxrec {

constexpr int kShardBits = 8;
constexpr int kShards = 1 << kShardBits;

// Hash bits: the top 8 choose the shard, the next 32 the bucket, the lowest 8
// the tag.
inline int ShardOf(uint64_t hash) {
  return static_cast<int>(hash >> (64 - kShardBits));
}

// An open-addressing table of cache-line buckets. It stores row indices only;
// keys are compared where the rows keep them, so a slot costs 5 bytes.
//
// A key lives in its home bucket or, when that was full, in a later one. Each
// bucket counts the keys that passed it over, so a search knows where to stop
// and an erased key leaves no trace.
//
// Thread safety: none; the table holds the shard's mutex.
class ShardIndex {
 public:
  // `shard` staggers the growth: shards of equally many keys grow at different
  // times, so that no batch pays for all of them.
  explicit ShardIndex(int shard);

  int64_t size() const { return size_; }
  int64_t bytes() const {
    return static_cast<int64_t>(count_) * sizeof(Bucket);
  }

  void PrefetchBucket(uint64_t hash) const {
    if (count_ != 0) __builtin_prefetch(&buckets_[Home(hash)], 0, 3);
  }
  // The row that most likely has the key, if any does, or -1. Brings its key
  // near.
  int64_t LikelyRow(uint64_t hash, const RowAccess& rows) const {
    if (count_ == 0) return -1;
    const Bucket& bucket = buckets_[Home(hash)];
    const uint32_t match = Match(bucket, TagOf(hash));
    if (match == 0) return -1;
    const RowIndex row = bucket.rows[__builtin_ctz(match)];
    __builtin_prefetch(rows.KeyOf(row), 0, 3);
    return row;
  }

  // True and the row if the key is there.
  bool Find(uint64_t hash, Key key, const RowAccess& rows,
            RowIndex* row) const {
    if (count_ == 0) return false;
    const uint8_t tag = TagOf(hash);
    uint32_t at = Home(hash);
    for (uint32_t probed = 0; probed < count_; ++probed) {
      const Bucket& bucket = buckets_[at];
      for (uint32_t match = Match(bucket, tag); match != 0;
           match &= match - 1) {
        const RowIndex candidate = bucket.rows[__builtin_ctz(match)];
        if (*rows.KeyOf(candidate) == key) {
          *row = candidate;
          return true;
        }
      }
      if (bucket.passed == 0) return false;
      at = Next(at);
    }
    return false;
  }

  // Makes room for so many keys in an empty index, as if it had grown to it. If
  // there is no memory, it begins small.
  void Prepare(int64_t keys);
  // Makes room for one more key. False if there is no memory; nothing changed.
  bool Reserve(const RowAccess& rows) { return size_ < limit_ || Grow(rows); }
  // The key must be absent, and Reserve must have returned true.
  void Insert(uint64_t hash, RowIndex row);
  // The key must be there, in that row.
  void Erase(uint64_t hash, RowIndex row);

 private:
  static constexpr int kSlots = 12;
  struct alignas(64) Bucket {
    uint8_t tags[kSlots];  // 0: empty
    uint32_t passed;       // keys whose home is before and that live behind
    RowIndex rows[kSlots];
  };
  static_assert(sizeof(Bucket) == 64, "a bucket is a cache line");
  struct FreeDeleter {
    void operator()(Bucket* buckets) const { std::free(buckets); }
  };

  static uint8_t TagOf(uint64_t hash) {
    const uint8_t tag = static_cast<uint8_t>(hash);
    return tag == 0 ? 1 : tag;
  }
  // Slots of the bucket with that tag, as bits.
  static uint32_t Match(const Bucket& bucket, uint8_t tag) {
    const __m128i tags =
        _mm_load_si128(reinterpret_cast<const __m128i*>(bucket.tags));
    const __m128i equal =
        _mm_cmpeq_epi8(tags, _mm_set1_epi8(static_cast<char>(tag)));
    return static_cast<uint32_t>(_mm_movemask_epi8(equal)) &
           ((1u << kSlots) - 1);
  }
  uint32_t Home(uint64_t hash) const {
    return static_cast<uint32_t>(
        (((hash >> 24) & 0xFFFFFFFFu) * static_cast<uint64_t>(count_)) >> 32);
  }
  uint32_t Next(uint32_t at) const { return at + 1 == count_ ? 0 : at + 1; }
  uint32_t CountAtLevel(int level) const;
  static int64_t LimitOf(uint32_t count);
  bool Grow(const RowAccess& rows);

  std::unique_ptr<Bucket[], FreeDeleter> buckets_;
  uint32_t count_ = 0;  // buckets
  int64_t size_ = 0;    // keys
  int64_t limit_ = 0;   // keys before the next growth
  int level_ = 0;
  const double stagger_;
};

}  // namespace mxrec

#endif  // MXREC_SRC_SHARD_INDEX_H_
