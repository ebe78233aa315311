#include "candidates.h"

#include <cstddef>
#include <utility>

namespace mxrec {

Candidates::Entry* Candidates::FindOrAdd(uint64_t hash, Key key) {
  if (4 * (size_ + 1) > 3 * slots()) {
    Rebuild(slots() == 0 ? kMinSlots : 2 * slots());
  }
  for (uint64_t at = Home(hash);; at = (at + 1) & mask_) {
    Entry& entry = entries_[at];
    if (!entry.exists()) {
      entry = {key, 0, 0};
      ++size_;
      return &entry;
    }
    if (entry.key == key) return &entry;
  }
}

// What lies behind moves up, unless that would be before its home.
void Candidates::EraseAt(uint64_t hole) {
  --size_;
  for (uint64_t at = (hole + 1) & mask_; entries_[at].exists();
       at = (at + 1) & mask_) {
    const uint64_t home = Home(HashKey(entries_[at].key));
    if (((at - home) & mask_) >= ((at - hole) & mask_)) {
      entries_[hole] = entries_[at];
      hole = at;
    }
  }
  entries_[hole].count = kEmpty;
}

void Candidates::Trim() {
  int64_t wanted = slots();
  while (wanted > kMinSlots && 4 * size_ < wanted) wanted /= 2;
  if (size_ == 0) wanted = 0;
  if (2 * wanted < slots()) Rebuild(wanted);
}

void Candidates::Rebuild(int64_t slots) {
  std::vector<Entry> fresh(static_cast<std::size_t>(slots),
                           Entry{0, kEmpty, 0});
  const std::vector<Entry> old = std::exchange(entries_, std::move(fresh));
  mask_ = slots == 0 ? 0 : static_cast<uint64_t>(slots) - 1;
  for (const Entry& entry : old) {
    if (!entry.exists()) continue;
    uint64_t at = Home(HashKey(entry.key));
    while (entries_[at].exists()) at = (at + 1) & mask_;
    entries_[at] = entry;
  }
}

}  // namespace mxrec
