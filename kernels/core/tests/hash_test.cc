#include "hash.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "mxrec/address.h"
#include "tests/testing.h"

namespace mxrec {
namespace {

// Over 255 degrees of freedom a right distribution exceeds 330.5 once in a
// thousand samples.
double ChiSquare256(const std::vector<Key>& keys, int shift) {
  std::vector<int64_t> counts(256);
  for (Key key : keys) ++counts[(HashKey(key) >> shift) & 255];
  const double expected = keys.size() / 256.0;
  double chi = 0;
  for (int64_t n : counts) chi += (n - expected) * (n - expected) / expected;
  return chi;
}

std::vector<Key> Strided(Key start, Key stride, int64_t n) {
  std::vector<Key> keys(n);
  for (int64_t i = 0; i < n; ++i) {
    keys[i] = static_cast<Key>(static_cast<uint64_t>(start) +
                               static_cast<uint64_t>(stride) * i);
  }
  return keys;
}

TEST(HashKey_Golden) {
  // Shards and files may rely on these values: they never change.
  const struct {
    Key key;
    uint64_t hash;
  } golden[] = {
      {0, 0x0000000000000000},
      {1, 0x4179b061e0c0e0d0},
      {2, 0x1c9963305febc252},
      {-1, 0x448e29ced4103459},
      {-2, 0x0570201cf108da9e},
      {12345, 0xd179fa85b9d0e649},
      {256, 0x8482929c05a92b0e},
      {1048576, 0x412cc9b74e5db4fa},
      {4294967295, 0x41c6aec41b1456d1},
      {4294967296, 0xa04a6aae1526eda6},
      {4294967297, 0x21cbd3c44eaa31ad},
      {81985529216486895, 0x3efdea49c590f4ec},
      {-1099511627776, 0x9ab7f040e9505204},
      {std::numeric_limits<Key>::max(), 0xb6d2958ba3f08589},
      {std::numeric_limits<Key>::min(), 0x72446bbcf6c799d7},
  };
  for (const auto& g : golden) EXPECT_EQ(HashKey(g.key), g.hash);
}

TEST(HashKey_SpreadsOverShards) {
  constexpr int64_t kKeys = 100000;
  std::vector<std::vector<Key>> sets = {
      Strided(0, 1, kKeys),
      Strided(-kKeys / 2, 1, kKeys),
      Strided(Key{1} << 40, 1, kKeys),
      Strided(std::numeric_limits<Key>::min(), 1, kKeys),
      Strided(0, 256, kKeys),
      Strided(3, 1 << 20, kKeys),
      Strided(0, Key{1} << 32, kKeys),
      Strided(0, Key{1} << 44, kKeys),
      Strided(0, 1000003, kKeys),
  };
  std::mt19937_64 rng(4);
  std::vector<Key> random(kKeys);
  for (Key& key : random) key = static_cast<Key>(rng());
  sets.push_back(random);
  for (const std::vector<Key>& keys : sets) {
    // The top bits choose the shard, the others the place in it.
    for (int shift : {56, 48, 40, 24, 8, 0}) {
      EXPECT_LT(ChiSquare256(keys, shift), 345);
    }
  }
}

TEST(HashKey_HasNoCollisionsInAMillion) {
  std::vector<uint64_t> hashes;
  for (const auto& keys : {Strided(0, 1, 500000), Strided(-1, -4096, 500000)}) {
    for (Key key : keys) hashes.push_back(HashKey(key));
  }
  std::sort(hashes.begin(), hashes.end());
  EXPECT_TRUE(std::adjacent_find(hashes.begin(), hashes.end()) == hashes.end());
}

TEST(HashKey_EveryKeyBitMovesHalfTheHashBits) {
  std::mt19937_64 rng(5);
  for (int bit = 0; bit < 64; ++bit) {
    int64_t flipped = 0;
    constexpr int kSamples = 2000;
    for (int i = 0; i < kSamples; ++i) {
      const uint64_t key = rng();
      flipped += __builtin_popcountll(
          HashKey(static_cast<Key>(key)) ^
          HashKey(static_cast<Key>(key ^ (uint64_t{1} << bit))));
    }
    EXPECT_NEAR(1.0 * flipped / kSamples, 32, 1);
  }
}

}  // namespace
}  // namespace mxrec
