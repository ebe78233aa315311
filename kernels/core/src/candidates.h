// Counts of keys that have no row.
#ifndef MXREC_SRC_CANDIDATES_H_
#define MXREC_SRC_CANDIDATES_H_

#include <cstdint>
#include <vector>

#include "hash.h"
#include "mxrec/address.h"

namespace mxrec {

// From keys to counts and times: linear probing, 24 bytes a slot, no trace of
// an erased key.
//
// Thread safety: none; the owner holds the shard's mutex.
class Candidates {
 public:
  struct Entry {
    Key key;
    int64_t count;  // kEmpty: no entry
    int64_t time;   // last seen
    bool exists() const { return count >= 0; }
  };

  int64_t size() const { return size_; }
  int64_t slots() const { return static_cast<int64_t>(entries_.size()); }
  int64_t bytes() const {
    return static_cast<int64_t>(entries_.capacity() * sizeof(Entry));
  }

  // Null if there is none. Valid until the next change.
  Entry* Find(uint64_t hash, Key key) {
    if (size_ == 0) return nullptr;
    for (uint64_t at = Home(hash);; at = (at + 1) & mask_) {
      Entry& entry = entries_[at];
      if (!entry.exists()) return nullptr;
      if (entry.key == key) return &entry;
    }
  }
  // With count 0 and time 0 if it is new.
  Entry* FindOrAdd(uint64_t hash, Key key);
  // Of an entry that Find or FindOrAdd gave.
  void Erase(Entry* entry) {
    EraseAt(static_cast<uint64_t>(entry - entries_.data()));
  }
  // Erases those of the slots [begin, end) for which `goes(entry)`. Returns how
  // many. No entry that was behind `begin` before gets past `end` unseen.
  template <typename Goes>
  int64_t EraseIf(int64_t begin, int64_t end, const Goes& goes) {
    int64_t erased = 0;
    for (int64_t at = begin; at < end;) {
      const Entry& entry = entries_[at];
      if (entry.exists() && goes(entry)) {
        EraseAt(static_cast<uint64_t>(at));  // another may have moved here
        ++erased;
      } else {
        ++at;
      }
    }
    return erased;
  }
  // Gives memory back where little is used.
  void Trim();

  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (const Entry& entry : entries_) {
      if (entry.exists()) visit(entry);
    }
  }

  // `visit` may change counts and times.
  template <typename Visit>
  void ForEach(const Visit& visit) {
    for (Entry& entry : entries_) {
      if (entry.exists()) visit(entry);
    }
  }

 private:
  static constexpr int64_t kEmpty = -1;
  static constexpr int64_t kMinSlots = 16;

  uint64_t Home(uint64_t hash) const { return (hash >> 12) & mask_; }
  void EraseAt(uint64_t hole);
  void Rebuild(int64_t slots);

  std::vector<Entry> entries_;
  uint64_t mask_ = 0;
  int64_t size_ = 0;
};

// a + b for values that are not negative, at most the largest.
inline int64_t SaturatingAdd(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

}  // namespace mxrec

#endif  // MXREC_SRC_CANDIDATES_H_
