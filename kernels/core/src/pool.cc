#include "mxrec/pool.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "row_math.h"

namespace mxrec {
namespace {

constexpr int64_t kBlock = 256;  // rows whose divisors are kept at a time
constexpr int64_t kCyclesPerId = 20;
constexpr int64_t kFloatsPerCycle = 4;
// Of a gradient: two cache lines, so that threads seldom write to one line.
constexpr int64_t kColumnsPerThread = 32;

Status CheckBatch(const PoolBatch& batch, int64_t num_embeddings) {
  const int64_t ids = batch.restore.size();
  const Span<const int64_t> splits = batch.row_splits;
  if (splits.empty() || splits[0] != 0 || splits[splits.size() - 1] != ids) {
    return Status::InvalidArgument(
        "row_splits must lead from 0 to the number of ids, " +
        std::to_string(ids) +
        (splits.empty() ? ", but are empty"
                        : ", got " + std::to_string(splits[0]) + " to " +
                              std::to_string(splits[splits.size() - 1])));
  }
  for (int64_t i = 1; i < splits.size(); ++i) {
    if (splits[i] >= splits[i - 1]) continue;
    return Status::InvalidArgument("row_splits must not descend, but have " +
                                   std::to_string(splits[i]) + " at position " +
                                   std::to_string(i) + " after " +
                                   std::to_string(splits[i - 1]));
  }
  for (int64_t j = 0; j < ids; ++j) {
    const int64_t row = batch.restore[j];
    if (row >= 0 && row < num_embeddings) continue;
    return Status::InvalidArgument(
        "restore[" + std::to_string(j) + "] = " + std::to_string(row) +
        " is not in [0, " + std::to_string(num_embeddings) + ")");
  }
  return Status::Ok();
}

// What the sum of row i is divided by.
float Divisor(const PoolBatch& batch, int64_t i) {
  const int64_t begin = batch.row_splits[i];
  const int64_t end = batch.row_splits[i + 1];
  if (batch.combiner == Combiner::kSum) return 1.0f;
  if (batch.weights == nullptr) {
    const float count = static_cast<float>(end - begin);
    return batch.combiner == Combiner::kMean ? count : std::sqrt(count);
  }
  float sum = 0.0f;
  if (batch.combiner == Combiner::kMean) {
    for (int64_t j = begin; j < end; ++j) sum += batch.weights[j];
    return sum;
  }
  for (int64_t j = begin; j < end; ++j) {
    sum += batch.weights[j] * batch.weights[j];
  }
  return std::sqrt(sum);
}

// Rough cycles for one of `rows` rows of sums over `ids` ids.
int64_t CostOfRow(int64_t rows, int64_t ids, int64_t dim) {
  return (ids / std::max<int64_t>(rows, 1) + 1) *
         (dim / kFloatsPerCycle + kCyclesPerId);
}

}  // namespace

Status Pool(const PoolBatch& batch, const float* embeddings,
            int64_t num_embeddings, int64_t dim, float* pooled,
            const Parallel& parallel) {
  Status status = CheckBatch(batch, num_embeddings);
  if (!status.ok()) return status;
  const RowMath& math = BestRowMath();
  const int64_t rows = batch.rows();
  const bool divides = batch.combiner != Combiner::kSum;
  parallel.For(rows, CostOfRow(rows, batch.restore.size(), dim),
               [&](int64_t begin, int64_t end) {
                 float divisors[kBlock];
                 for (int64_t block = begin; block < end; block += kBlock) {
                   const int64_t block_end = std::min(end, block + kBlock);
                   for (int64_t i = block; divides && i < block_end; ++i) {
                     divisors[i - block] = Divisor(batch, i);
                   }
                   math.sum_rows(
                       embeddings, dim, batch.restore.data(), batch.weights,
                       batch.row_splits.data() + block, block_end - block,
                       divides ? divisors : nullptr, pooled + block * dim);
                 }
               });
  return status;
}

Status PoolGradient(const PoolBatch& batch, const float* gradients,
                    int64_t num_embeddings, int64_t dim, float* out,
                    const Parallel& parallel) {
  Status status = CheckBatch(batch, num_embeddings);
  if (!status.ok()) return status;
  std::vector<float> divisors;
  if (batch.combiner != Combiner::kSum) {
    divisors.resize(batch.rows());
    for (int64_t i = 0; i < batch.rows(); ++i) divisors[i] = Divisor(batch, i);
  }
  const RowMath& math = BestRowMath();
  const int64_t blocks = (dim + kColumnsPerThread - 1) / kColumnsPerThread;
  const int64_t cost =
      (batch.restore.size() + num_embeddings) *
      (std::min(dim, kColumnsPerThread) / kFloatsPerCycle + kCyclesPerId);
  // By columns: threads share no element, and each adds in order of position.
  parallel.For(blocks, cost, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kColumnsPerThread;
    math.scatter_rows(
        gradients, dim, first, std::min(dim, end * kColumnsPerThread) - first,
        batch.restore.data(), batch.weights, batch.row_splits.data(),
        batch.rows(), divisors.empty() ? nullptr : divisors.data(),
        num_embeddings, out);
  });
  return status;
}

Status PoolWeightGradient(const PoolBatch& batch, const float* gradients,
                          const float* embeddings, int64_t num_embeddings,
                          int64_t dim, float* out, const Parallel& parallel) {
  Status status = CheckBatch(batch, num_embeddings);
  if (!status.ok()) return status;
  const RowMath& math = BestRowMath();
  const int64_t* splits = batch.row_splits.data();
  const float* weights = batch.weights;
  const int64_t rows = batch.rows();
  // With d_j = gradient . e_j, W the divisor and S = sum_j w_j d_j the gradient
  // of w_j is d_j for sum, (d_j - S / W) / W for mean and
  // (d_j - w_j S / W^2) / W for sqrtn.
  const auto body = [&](int64_t begin, int64_t end) {
    math.dot_rows(embeddings, dim, batch.restore.data(), splits + begin,
                  end - begin, gradients + begin * dim, out);
    if (batch.combiner == Combiner::kSum) return;
    for (int64_t i = begin; i < end; ++i) {
      const float divisor = Divisor(batch, i);
      const float scale = divisor == 0.0f ? 0.0f : 1.0f / divisor;
      float sum = 0.0f;
      for (int64_t j = splits[i]; j < splits[i + 1]; ++j) {
        sum += weights[j] * out[j];
      }
      const float mean = sum * scale;
      for (int64_t j = splits[i]; j < splits[i + 1]; ++j) {
        const float part = batch.combiner == Combiner::kMean
                               ? mean
                               : mean * (weights[j] * scale);
        out[j] = divisor == 0.0f ? 0.0f : (out[j] - part) * scale;
      }
    }
  };
  parallel.For(rows, CostOfRow(rows, batch.restore.size(), dim), body);
  return status;
}

Status RowSplits(const int64_t* indices, int64_t n, int64_t stride,
                 int64_t num_rows, int64_t* row_splits) {
  int64_t row = 0;  // the rows before it have all their values
  row_splits[0] = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t next = indices[i * stride];
    if (next < 0 || next >= num_rows) {
      return Status::InvalidArgument(
          "value " + std::to_string(i) + " is in row " + std::to_string(next) +
          ", which is not in [0, " + std::to_string(num_rows) + ")");
    }
    if (i > 0 && next < row) {
      return Status::InvalidArgument(
          "rows must ascend, but value " + std::to_string(i) + " is in row " +
          std::to_string(next) + ", after a value in row " +
          std::to_string(row) + "; reorder the sparse tensor");
    }
    while (row < next) row_splits[++row] = i;
  }
  while (row < num_rows) row_splits[++row] = n;
  return Status::Ok();
}

}  // namespace mxrec
