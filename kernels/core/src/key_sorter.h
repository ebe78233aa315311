// A batch's keys sorted by shard, on several threads.
#ifndef MXREC_SRC_KEY_SORTER_H_
#define MXREC_SRC_KEY_SORTER_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "hash.h"
#include "mxrec/address.h"
#include "mxrec/parallel.h"
#include "mxrec/span.h"
#include "shard_index.h"

namespace mxrec {

struct KeyAt {
  Key key;
  uint32_t position;
};

// Scratch memory that is worth keeping: a fresh megabyte for each batch would
// be paid in page faults.
//
// Thread safety: none. Sort starts threads of its own by `parallel`.
class KeySorter {
 public:
  // `filter(begin, end, left)` deals with the positions in [begin, end), writes
  // those that must be sorted to `left` and returns how many they are. It may
  // run on several threads.
  template <typename Filter>
  void Sort(Span<const Key> keys, const Filter& filter,
            const Parallel& parallel);

  // Keys of the shards [begin, end), in order of position within a shard.
  Span<const KeyAt> Shards(int begin, int end) const {
    return {sorted_.data() + start_[begin],
            static_cast<int64_t>(start_[end]) - start_[begin]};
  }
  int64_t size() const { return start_[kShards]; }

 private:
  static constexpr int64_t kMinChunk = 4096;
  static constexpr int64_t kMaxChunks = 16;
  // Rough costs in cycles, for the thread pool.
  static constexpr int64_t kFilterCost = 40;
  static constexpr int64_t kMoveCost = 20;

  struct Chunk {
    int64_t begin;
    int64_t left;                             // positions that must be sorted
    std::array<uint32_t, kShards> per_shard;  // how many, later where
  };

  std::vector<Chunk> chunks_;
  std::vector<uint32_t> positions_;  // a chunk's from its own begin on
  std::vector<KeyAt> sorted_;
  std::array<uint32_t, kShards + 1> start_;
};

template <typename Filter>
void KeySorter::Sort(Span<const Key> keys, const Filter& filter,
                     const Parallel& parallel) {
  const int64_t n = keys.size();
  const int64_t chunks =
      std::min(kMaxChunks, std::max<int64_t>(1, n / kMinChunk));
  chunks_.resize(chunks);
  if (static_cast<int64_t>(positions_.size()) < n) positions_.resize(n);
  const auto run = [&](int64_t cost, const auto& body) {
    if (chunks == 1) return body(0, 1);
    parallel.For(chunks, cost * (n / chunks), body);
  };

  run(kFilterCost, [&](int64_t first, int64_t last) {
    for (int64_t c = first; c < last; ++c) {
      Chunk& chunk = chunks_[c];
      chunk.begin = n * c / chunks;
      uint32_t* left = positions_.data() + chunk.begin;
      chunk.left = filter(chunk.begin, n * (c + 1) / chunks, left);
      chunk.per_shard.fill(0);
      for (int64_t i = 0; i < chunk.left; ++i) {
        ++chunk.per_shard[ShardOf(HashKey(keys[left[i]]))];
      }
    }
  });

  uint32_t total = 0;
  for (int s = 0; s < kShards; ++s) {
    start_[s] = total;
    for (Chunk& chunk : chunks_) {
      const uint32_t count = chunk.per_shard[s];
      chunk.per_shard[s] = total;
      total += count;
    }
  }
  start_[kShards] = total;
  if (total == 0) return;
  if (sorted_.size() < total) sorted_.resize(total);

  run(kMoveCost, [&](int64_t first, int64_t last) {
    for (int64_t c = first; c < last; ++c) {
      Chunk& chunk = chunks_[c];
      const uint32_t* left = positions_.data() + chunk.begin;
      for (int64_t i = 0; i < chunk.left; ++i) {
        const Key key = keys[left[i]];
        sorted_[chunk.per_shard[ShardOf(HashKey(key))]++] = {key, left[i]};
      }
    }
  });
}

}  // namespace mxrec

#endif  // MXREC_SRC_KEY_SORTER_H_
