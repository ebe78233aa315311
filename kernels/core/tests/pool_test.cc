#include "mxrec/pool.h"

#include <cmath>
#include <random>

#include "testing.h"
#include "thread_pool.h"

namespace mxrec {
namespace {

using testing::ThreadPool;

constexpr Combiner kCombiners[] = {Combiner::kSum, Combiner::kMean,
                                   Combiner::kSqrtN};

// A random batch; some rows are empty, ids repeat, some weights are negative.
struct Sample {
  int64_t num_embeddings;
  int64_t dim;
  std::vector<float> embeddings, gradients, weights;
  std::vector<int32_t> restore;
  std::vector<int64_t> splits{0};

  Sample(int64_t rows, int64_t longest, int64_t num_embeddings, int64_t dim,
         int seed)
      : num_embeddings(num_embeddings), dim(dim) {
    std::mt19937_64 rng(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t count =
          num_embeddings == 0 ? 0 : static_cast<int64_t>(rng() % (longest + 1));
      for (int64_t j = 0; j < count; ++j) {
        restore.push_back(static_cast<int32_t>(rng() % num_embeddings));
        weights.push_back(normal(rng) + 1.0f);
      }
      splits.push_back(static_cast<int64_t>(restore.size()));
    }
    embeddings.resize(num_embeddings * dim);
    gradients.resize(rows * dim);
    for (float& x : embeddings) x = normal(rng);
    for (float& x : gradients) x = normal(rng);
  }

  PoolBatch Batch(Combiner combiner, bool weighted) const {
    return {restore, splits, weighted ? weights.data() : nullptr, combiner};
  }
  int64_t rows() const { return static_cast<int64_t>(splits.size()) - 1; }
  double Weight(int64_t j, bool weighted) const {
    return weighted ? weights[j] : 1.0;
  }
  double Divisor(int64_t i, Combiner combiner, bool weighted) const {
    double sum = 0;
    for (int64_t j = splits[i]; j < splits[i + 1]; ++j) {
      const double w = Weight(j, weighted);
      sum += combiner == Combiner::kMean ? w : w * w;
    }
    if (combiner == Combiner::kSum) return 1;
    return combiner == Combiner::kMean ? sum : std::sqrt(sum);
  }
};

// Float sums of these values in any order are as near as that, unless a divisor
// is nearly 0.
double Tolerance(double divisor, int64_t terms) {
  const double scale = std::min(1.0, std::fabs(divisor));
  return 1e-6 * static_cast<double>(terms + 4) / (scale * scale + 1e-30);
}

void CheckSample(const Sample& s, Combiner combiner, bool weighted,
                 const Parallel& parallel) {
  const PoolBatch batch = s.Batch(combiner, weighted);
  std::vector<float> pooled(s.rows() * s.dim, 77.0f);
  ASSERT_OK(Pool(batch, s.embeddings.data(), s.num_embeddings, s.dim,
                 pooled.data(), parallel));
  std::vector<float> sums(s.num_embeddings * s.dim, 77.0f);
  ASSERT_OK(PoolGradient(batch, s.gradients.data(), s.num_embeddings, s.dim,
                         sums.data(), parallel));
  std::vector<double> expected_sums(sums.size());
  std::vector<double> tolerances(s.num_embeddings, 1e-6);
  for (int64_t i = 0; i < s.rows(); ++i) {
    const double divisor = s.Divisor(i, combiner, weighted);
    const int64_t terms = s.splits[i + 1] - s.splits[i];
    const double tolerance = 20 * Tolerance(divisor, terms);
    for (int64_t k = 0; k < s.dim; ++k) {
      double sum = 0;
      for (int64_t j = s.splits[i]; j < s.splits[i + 1]; ++j) {
        const double w = s.Weight(j, weighted);
        sum += w * s.embeddings[s.restore[j] * s.dim + k];
        if (divisor != 0) {
          expected_sums[s.restore[j] * s.dim + k] +=
              w / divisor * s.gradients[i * s.dim + k];
        }
      }
      EXPECT_NEAR(pooled[i * s.dim + k], divisor == 0 ? 0.0 : sum / divisor,
                  tolerance);
    }
    for (int64_t j = s.splits[i]; j < s.splits[i + 1]; ++j) {
      tolerances[s.restore[j]] += tolerance;
    }
  }
  for (size_t x = 0; x < sums.size(); ++x) {
    EXPECT_NEAR(sums[x], expected_sums[x], tolerances[x / s.dim]);
  }
}

TEST(Pool_EveryDimAndCombiner) {
  const SerialParallel serial;
  const ThreadPool pool(4, ThreadPool::Split::kAlways);
  for (int64_t dim = 0; dim <= 90; ++dim) {
    const Sample sample(13, 6, 9, dim, static_cast<int>(dim));
    for (Combiner combiner : kCombiners) {
      for (bool weighted : {false, true}) {
        CheckSample(sample, combiner, weighted, serial);
        CheckSample(sample, combiner, weighted, pool);
      }
    }
  }
}

TEST(Pool_OddBatches) {
  const ThreadPool pool(3, ThreadPool::Split::kAlways);
  for (const Sample& sample :
       {Sample(0, 0, 0, 8, 1), Sample(0, 0, 5, 8, 2), Sample(5, 0, 0, 8, 3),
        Sample(7, 0, 4, 16, 4), Sample(1, 500, 3, 64, 5),
        Sample(900, 3, 1, 16, 6), Sample(1, 1, 1, 1, 7),
        Sample(700, 40, 5000, 33, 8)}) {
    for (Combiner combiner : kCombiners) {
      CheckSample(sample, combiner, false, pool);
      CheckSample(sample, combiner, true, pool);
    }
  }
}

TEST(Pool_SameBitsForAnyNumberOfThreads) {
  const Sample sample(2000, 20, 300, 24, 9);
  const SerialParallel serial;
  const int64_t ids = static_cast<int64_t>(sample.restore.size());
  for (Combiner combiner : kCombiners) {
    const PoolBatch batch = sample.Batch(combiner, true);
    std::vector<std::vector<float>> first;
    for (int threads : {0, 2, 5}) {
      const ThreadPool pool(threads + 1, ThreadPool::Split::kAlways);
      const Parallel& parallel =
          threads == 0 ? static_cast<const Parallel&>(serial) : pool;
      std::vector<float> pooled(sample.gradients.size());
      std::vector<float> sums(sample.embeddings.size()), weights(ids);
      ASSERT_OK(Pool(batch, sample.embeddings.data(), 300, 24, pooled.data(),
                     parallel));
      ASSERT_OK(PoolGradient(batch, sample.gradients.data(), 300, 24,
                             sums.data(), parallel));
      ASSERT_OK(PoolWeightGradient(batch, sample.gradients.data(),
                                   sample.embeddings.data(), 300, 24,
                                   weights.data(), parallel));
      const std::vector<std::vector<float>> now = {pooled, sums, weights};
      if (first.empty()) first = now;
      EXPECT_TRUE(now == first);
    }
  }
}

// The derivative of gradients . pooled by each weight, by central differences
// in double precision.
TEST(PoolWeightGradient_IsTheDerivative) {
  const ThreadPool pool(3, ThreadPool::Split::kAlways);
  for (int64_t dim : {1, 7, 8, 19}) {
    Sample s(6, 5, 4, dim, static_cast<int>(20 + dim));
    for (float& w : s.weights) w = std::fabs(w) + 0.5f;
    for (Combiner combiner : kCombiners) {
      std::vector<float> got(s.restore.size());
      ASSERT_OK(PoolWeightGradient(s.Batch(combiner, true), s.gradients.data(),
                                   s.embeddings.data(), s.num_embeddings, dim,
                                   got.data(), pool));
      for (int64_t i = 0; i < s.rows(); ++i) {
        for (int64_t j = s.splits[i]; j < s.splits[i + 1]; ++j) {
          const auto loss = [&](double shift) {
            double divisor = 0, dot = 0;
            for (int64_t p = s.splits[i]; p < s.splits[i + 1]; ++p) {
              const double w = s.weights[p] + (p == j ? shift : 0);
              divisor += combiner == Combiner::kMean ? w : w * w;
              for (int64_t k = 0; k < dim; ++k) {
                dot += w * s.embeddings[s.restore[p] * dim + k] *
                       s.gradients[i * dim + k];
              }
            }
            if (combiner == Combiner::kSum) return dot;
            return dot /
                   (combiner == Combiner::kMean ? divisor : std::sqrt(divisor));
          };
          EXPECT_NEAR(got[j], (loss(1e-4) - loss(-1e-4)) / 2e-4, 1e-4);
        }
      }
    }
  }
}

TEST(Pool_DivisorOfZeroGivesZeros) {
  const SerialParallel serial;
  const std::vector<float> embeddings = {1, 2, 3, 4};
  const std::vector<int32_t> restore = {0, 1};
  const std::vector<int64_t> splits = {0, 2};
  const std::vector<float> gradients = {5, 6};
  for (bool cancels : {true, false}) {
    const std::vector<float> weights =
        cancels ? std::vector<float>{1, -1} : std::vector<float>{0, 0};
    const Combiner combiner = cancels ? Combiner::kMean : Combiner::kSqrtN;
    const PoolBatch batch = {restore, splits, weights.data(), combiner};
    std::vector<float> pooled(2, 77), sums(4, 77), by_weight(2, 77);
    ASSERT_OK(Pool(batch, embeddings.data(), 2, 2, pooled.data(), serial));
    ASSERT_OK(PoolGradient(batch, gradients.data(), 2, 2, sums.data(), serial));
    ASSERT_OK(PoolWeightGradient(batch, gradients.data(), embeddings.data(), 2,
                                 2, by_weight.data(), serial));
    EXPECT_TRUE(pooled == std::vector<float>(2));
    EXPECT_TRUE(sums == std::vector<float>(4));
    EXPECT_TRUE(by_weight == std::vector<float>(2));
  }
}

TEST(Pool_RefusesWhatLeadsNowhere) {
  const SerialParallel serial;
  const std::vector<float> rows(8);
  std::vector<float> out(8);
  const auto check = [&](const std::vector<int32_t>& restore,
                         const std::vector<int64_t>& splits, const char* text) {
    const std::vector<float> weights(restore.size(), 1.0f);
    for (Combiner combiner : kCombiners) {
      const PoolBatch batch = {restore, splits, weights.data(), combiner};
      EXPECT_ERROR(Pool(batch, rows.data(), 2, 2, out.data(), serial),
                   Code::kInvalidArgument, text);
      EXPECT_ERROR(PoolGradient(batch, rows.data(), 2, 2, out.data(), serial),
                   Code::kInvalidArgument, text);
      EXPECT_ERROR(PoolWeightGradient(batch, rows.data(), rows.data(), 2, 2,
                                      out.data(), serial),
                   Code::kInvalidArgument, text);
    }
  };
  check({0, 2}, {0, 2}, "restore[1] = 2 is not in [0, 2)");
  check({-1, 0}, {0, 2}, "restore[0] = -1 is not in [0, 2)");
  check({0, 1}, {}, "row_splits must lead from 0 to the number of ids, 2");
  check({0, 1}, {1, 2}, "got 1 to 2");
  check({0, 1}, {0, 3}, "got 0 to 3");
  check({0, 1}, {0}, "got 0 to 0");
  check({0, 1}, {0, 5, 2},
        "row_splits must not descend, but have 2 at position"
        " 2 after 5");
  check({0, 1}, {0, -1, 2}, "have -1 at position 1 after 0");
}

TEST(RowSplits_OfAscendingRows) {
  const auto splits = [](const std::vector<int64_t>& rows, int64_t num_rows) {
    std::vector<int64_t> indices;
    for (int64_t row : rows) indices.insert(indices.end(), {row, 99});
    std::vector<int64_t> out(num_rows + 1, 77);
    EXPECT_OK(RowSplits(indices.data(), static_cast<int64_t>(rows.size()), 2,
                        num_rows, out.data()));
    return out;
  };
  EXPECT_TRUE(splits({}, 0) == (std::vector<int64_t>{0}));
  EXPECT_TRUE(splits({}, 3) == (std::vector<int64_t>{0, 0, 0, 0}));
  EXPECT_TRUE(splits({0, 0, 2}, 3) == (std::vector<int64_t>{0, 2, 2, 3}));
  EXPECT_TRUE(splits({1, 1}, 4) == (std::vector<int64_t>{0, 0, 2, 2, 2}));
  EXPECT_TRUE(splits({2}, 3) == (std::vector<int64_t>{0, 0, 0, 1}));
}

TEST(RowSplits_RefusesOtherRows) {
  std::vector<int64_t> out(4);
  const auto check = [&](std::vector<int64_t> rows, const char* text) {
    EXPECT_ERROR(RowSplits(rows.data(), static_cast<int64_t>(rows.size()), 1, 3,
                           out.data()),
                 Code::kInvalidArgument, text);
  };
  check({0, 3}, "value 1 is in row 3, which is not in [0, 3)");
  check({-1}, "value 0 is in row -1, which is not in [0, 3)");
  check({0, 2, 1}, "value 2 is in row 1, after a value in row 2");
}

}  // namespace
}  // namespace mxrec
