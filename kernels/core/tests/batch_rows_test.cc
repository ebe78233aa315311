#include "mxrec/batch_rows.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/testing.h"
#include "tests/thread_pool.h"

namespace mxrec {
namespace {

using testing::ThreadPool;

std::vector<float> Values(int64_t size, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& value : values) {
    // Of very different sizes, so that the order of a sum shows; and -0.
    value = std::ldexp(normal(random), static_cast<int>(random() % 40) - 20);
    if (random() % 16 == 0) value = -0.0f;
  }
  return values;
}

std::vector<int32_t> Positions(int64_t size, int64_t n, int32_t least) {
  std::mt19937 random(7);
  std::vector<int32_t> positions(size);
  for (int32_t& position : positions) {
    // Squared: low positions are frequent.
    const double u = std::uniform_real_distribution<>()(random);
    position = least + static_cast<int32_t>(u * u * (n - least));
  }
  return positions;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() ||
          std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

TEST(SpreadRowsCopiesRows) {
  for (const int dim : {1, 7, 16, 64, 100}) {
    for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{5000}}) {
      const int64_t n = 300;
      const std::vector<float> rows = Values(n * dim, 1);
      const std::vector<int32_t> positions = Positions(size, n, 0);
      std::vector<float> expected(size * dim);
      for (int64_t j = 0; j < size; ++j) {
        std::memcpy(expected.data() + j * dim, rows.data() + positions[j] * dim,
                    dim * sizeof(float));
      }
      for (const int threads : {1, 3}) {
        const ThreadPool pool(threads, ThreadPool::Split::kAlways);
        std::vector<float> batch(size * dim, 7.0f);
        EXPECT_TRUE(
            SpreadRows(rows.data(), n, dim, positions, batch.data(), pool)
                .ok());
        EXPECT_TRUE(SameBits(batch, expected));
      }
    }
  }
}

TEST(SpreadRowsNamesTheFirstPositionOutOfRange) {
  const std::vector<float> rows(8);
  std::vector<float> batch(2000);
  const ThreadPool pool(3, ThreadPool::Split::kAlways);
  for (const int32_t wrong : {4, -1}) {
    std::vector<int32_t> positions(1000, 3);
    positions[321] = positions[900] = wrong;
    const Status status =
        SpreadRows(rows.data(), 4, 2, positions, batch.data(), pool);
    EXPECT_EQ(status.message(),
              "[321] = " + std::to_string(wrong) + " is out of range [0, 4)");
  }
}

TEST(SumRowsAddsInOrderForAnyNumberOfThreads) {
  for (const int dim : {1, 7, 16, 64}) {
    for (const int64_t n : {int64_t{1}, int64_t{5}, int64_t{700}}) {
      const int64_t size = 3000;
      const std::vector<float> batch = Values(size * dim, 2);
      const std::vector<int32_t> positions = Positions(size, n, -1);
      std::vector<float> expected(n * dim, 0.0f);
      for (int64_t j = 0; j < size; ++j) {
        if (positions[j] < 0) continue;
        for (int k = 0; k < dim; ++k) {
          expected[positions[j] * dim + k] += batch[j * dim + k];
        }
      }
      for (const int threads : {1, 2, 3, 9}) {
        const ThreadPool pool(threads, ThreadPool::Split::kAlways);
        std::vector<float> sums(n * dim, 7.0f);
        EXPECT_TRUE(
            SumRows(batch.data(), positions, n, dim, sums.data(), pool).ok());
        EXPECT_TRUE(SameBits(sums, expected));
      }
    }
  }
}

TEST(SumRowsOfNothingIsZero) {
  const SerialParallel serial;
  std::vector<float> sums(6, 7.0f);
  EXPECT_TRUE(SumRows(nullptr, {}, 3, 2, sums.data(), serial).ok());
  EXPECT_TRUE(SameBits(sums, std::vector<float>(6)));
  EXPECT_TRUE(SumRows(nullptr, {}, 0, 2, nullptr, serial).ok());
}

TEST(SumRowsNamesTheFirstPositionOutOfRange) {
  const SerialParallel serial;
  const std::vector<int32_t> positions = {0, -5, 3, 9};
  const std::vector<float> batch(8);
  std::vector<float> sums(6);
  const Status status =
      SumRows(batch.data(), positions, 3, 2, sums.data(), serial);
  EXPECT_EQ(status.message(), "[2] = 3 is out of range [0, 3)");
}

}  // namespace
}  // namespace mxrec
