#include <algorithm>
#include <cstring>

#include "hash.h"
#include "mxrec/table.h"

namespace mxrec {
namespace {

constexpr int64_t kAhead = 16;
constexpr uint32_t kEmpty = 0xFFFFFFFFu;

// Kept per thread: a fresh megabyte for each batch would be paid in page
// faults.
struct Scratch {
  std::vector<uint32_t> slots;  // position among the unique keys
};

Scratch& ThreadScratch() {
  thread_local Scratch scratch;
  return scratch;
}

int Log2Slots(int64_t ids) {
  int bits = 4;
  while ((int64_t{1} << bits) < 2 * ids) ++bits;
  return bits;
}

}  // namespace

template <typename T>
void Unique(Span<const T> ids, std::vector<Key>* keys, int32_t* restore,
            std::vector<int32_t>* counts) {
  const int64_t n = ids.size();
  const int bits = Log2Slots(n);
  const int shift = 64 - bits;
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  std::vector<uint32_t>& slots = ThreadScratch().slots;
  if (slots.size() < mask + 1) slots.resize(mask + 1);
  std::memset(slots.data(), 0xFF, (mask + 1) * sizeof(uint32_t));
  keys->resize(n);
  counts->resize(n);
  Key* unique_keys = keys->data();
  int32_t* unique_counts = counts->data();
  uint32_t found = 0;
  const auto hash = [](Key key) {
    return static_cast<uint64_t>(key) * 0x9E3779B97F4A7C15ull;
  };
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      __builtin_prefetch(&slots[hash(ids[i + kAhead]) >> shift], 1, 3);
    }
    const Key key = static_cast<Key>(ids[i]);
    uint64_t at = hash(key) >> shift;
    while (true) {
      const uint32_t position = slots[at];
      if (position == kEmpty) {
        slots[at] = found;
        unique_keys[found] = key;
        unique_counts[found] = 1;
        restore[i] = static_cast<int32_t>(found++);
        break;
      }
      if (unique_keys[position] == key) {
        ++unique_counts[position];
        restore[i] = static_cast<int32_t>(position);
        break;
      }
      at = (at + 1) & mask;
    }
  }
  keys->resize(found);
  counts->resize(found);
}

template void Unique<int32_t>(Span<const int32_t>, std::vector<Key>*, int32_t*,
                              std::vector<int32_t>*);
template void Unique<int64_t>(Span<const int64_t>, std::vector<Key>*, int32_t*,
                              std::vector<int32_t>*);

}  // namespace mxrec
