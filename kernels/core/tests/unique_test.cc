#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "mxrec/table.h"
#include "tests/testing.h"

namespace mxrec {
namespace {

template <typename T>
void CheckUnique(const std::vector<T>& ids) {
  std::vector<Key> expected_keys;
  std::vector<int32_t> expected_restore(ids.size());
  std::vector<int32_t> expected_counts;
  std::unordered_map<T, int32_t> position;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto found =
        position.emplace(ids[i], static_cast<int32_t>(expected_keys.size()));
    if (found.second) {
      expected_keys.push_back(ids[i]);
      expected_counts.push_back(0);
    }
    expected_restore[i] = found.first->second;
    ++expected_counts[found.first->second];
  }
  // Vectors that held something before.
  std::vector<Key> keys(3, 77);
  std::vector<int32_t> counts(ids.size() + 5, 77);
  std::vector<int32_t> restore(ids.size() + 1, 77);
  Unique<T>(ids, &keys, restore.data(), &counts);
  EXPECT_EQ(restore.back(), 77);
  restore.pop_back();
  EXPECT_EQ(keys.size(), expected_keys.size());
  EXPECT_TRUE(keys == expected_keys);
  EXPECT_TRUE(restore == expected_restore);
  EXPECT_TRUE(counts == expected_counts);
}

template <typename T>
void CheckPatterns(int64_t n, std::mt19937_64* rng) {
  using Limits = std::numeric_limits<T>;
  std::vector<T> ids(n);
  for (auto& id : ids) id = 5;
  CheckUnique(ids);
  for (int64_t i = 0; i < n; ++i) ids[i] = static_cast<T>(i);
  CheckUnique(ids);
  for (int64_t i = 0; i < n; ++i) ids[i] = static_cast<T>(-i * 1024);
  CheckUnique(ids);
  for (int64_t i = 0; i < n; ++i) ids[i] = static_cast<T>(i / 2);
  CheckUnique(ids);
  for (auto& id : ids) id = static_cast<T>((*rng)());
  CheckUnique(ids);
  for (auto& id : ids) id = static_cast<T>((*rng)() % (n / 2 + 1));
  CheckUnique(ids);
  const T special[] = {Limits::min(),
                       Limits::max(),
                       0,
                       -1,
                       1,
                       static_cast<T>(Limits::min() + 1)};
  for (auto& id : ids) id = special[(*rng)() % 6];
  CheckUnique(ids);
}

TEST(Unique_EverySmallSize) {
  std::mt19937_64 rng(1);
  for (int64_t n = 0; n <= 130; ++n) {
    CheckPatterns<int32_t>(n, &rng);
    CheckPatterns<int64_t>(n, &rng);
  }
}

TEST(Unique_SizesAroundPowersOfTwo) {
  std::mt19937_64 rng(2);
  for (int64_t power = 256; power <= 4096; power *= 2) {
    for (int64_t n : {power - 1, power, power + 1, power + power / 2}) {
      CheckPatterns<int32_t>(n, &rng);
      CheckPatterns<int64_t>(n, &rng);
    }
  }
  for (int64_t n : {700, 999, 1000, 1001, 4999, 5000}) {
    CheckPatterns<int32_t>(n, &rng);
    CheckPatterns<int64_t>(n, &rng);
  }
}

TEST(Unique_LargeBatches) {
  std::mt19937_64 rng(3);
  for (int64_t n : {16384, 65535, 65536, 65537, 300000}) {
    CheckPatterns<int32_t>(n, &rng);
    CheckPatterns<int64_t>(n, &rng);
  }
}

TEST(Unique_KeysThatDifferInHighBitsOnly) {
  std::vector<int64_t> ids;
  for (int shift = 0; shift < 64; ++shift) {
    for (int64_t i = 0; i < 64; ++i) {
      ids.push_back(static_cast<int64_t>(static_cast<uint64_t>(i) << shift));
    }
  }
  CheckUnique(ids);
}

TEST(Unique_FromSeveralThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      std::mt19937_64 rng(10 + t);
      for (int i = 0; i < 10; ++i) {
        CheckPatterns<int64_t>(1000 + 500 * t, &rng);
        CheckPatterns<int32_t>(3000 - 500 * t, &rng);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace mxrec
