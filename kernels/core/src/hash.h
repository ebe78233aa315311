// The one hash of keys. Pinned: a table's shards and, later, its files and
// processes are divided by it, so changing it is a format change.
#ifndef MXREC_SRC_HASH_H_
#define MXREC_SRC_HASH_H_

#include <cstdint>

namespace mxrec {

// Bijective on 64 bits (xor-shift and odd multiplications), so distinct keys
// never collide in all bits.
inline uint64_t HashKey(int64_t key) {
  uint64_t x = static_cast<uint64_t>(key);
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  x ^= x >> 32;
  return x;
}

}  // namespace mxrec

#endif  // MXREC_SRC_HASH_H_
